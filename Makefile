# make demo, make test: each sets up what it needs on a fresh machine.
#
#   PYTHON=python3.12          another interpreter, 3.11 or newer
#   VENV=.venv                 where the environment lies
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                              take torch from there; on Linux without a GPU this avoids
#                              a download of several gigabytes

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TORCH_PIN := $(shell grep '^torch==' constraints.txt)

.PHONY: help demo test test-slow lint types check smollm2 clean

help:
	@echo "make demo       train GRPO and Agon on the embedded model and compare them"
	@echo "make test       run the tests"
	@echo "make test-slow  run the slow tests too"
	@echo "make check      lint, format and types"
	@echo "make smollm2    build a local SmolLM2-135M-Instruct checkpoint"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Agon needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(if $(TORCH_INDEX),$(PIP) $(TORCH_PIN) --index-url $(TORCH_INDEX))
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) --editable '.[dev]'
	@touch $@

demo: $(VENV)/.run
	$(BIN)/agon demo

test: $(VENV)/.dev
	$(BIN)/pytest

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m ''

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types

smollm2: $(VENV)/.dev
	$(BIN)/python scripts/build_smollm2.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
