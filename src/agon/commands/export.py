"""`agon export`: a run's adapters as others load them.

    OUT/a, OUT/b       plain PEFT folders with model cards
    OUT/vllm.sh        a launch line that loads both
    OUT/README.md      what this is and how it is used
    OUT/merged-a, ...  with --merge: one whole checkpoint for each adapter

Merging happens in single precision on a copy of the base that is loaded for it, and is rounded once
to the base's own type; nothing of the run or of the base's folder is touched. safetensors only.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from rich.console import Console

from agon.adapter_folders import FINGERPRINT_FILE
from agon.assets import EMBEDDED, model_folder
from agon.checkpoints import latest_checkpoint
from agon.config import Config
from agon.display import say
from agon.errors import CheckpointError, ConfigError
from agon.prompts import DEFAULTS
from agon.runs import RunFolder
from agon.workshop import for_use

_FILES = ("adapter_model.safetensors", FINGERPRINT_FILE)
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as --max-lora-rank."""


def export(run: Path, out: Path, merge: bool, console: Console) -> None:
    """Write the newest adapters.

    Args:
        run: A run folder.
        out: Folder to make.
        merge: Whether to write merged checkpoints too.
        console: Where to write.

    Raises:
        AgonError: Anything that the user can mend.
    """
    folder = RunFolder(run)
    config = for_use(folder.read_config())
    checkpoint = latest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"{run} has no checkpoint yet: let it train for a while")
    if out.exists():
        raise ConfigError(f"--out {out} exists already: give a new folder")
    names = ("a", "b")[: config.game.policies]
    aside = out.with_name(f".{out.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        for name in names:
            _write_adapter(checkpoint, name, aside / name, config)
            if merge:
                say(console, f"merging {name} ...")
                _write_merged(aside / name, aside / f"merged-{name}", config, name)
        (aside / "vllm.sh").write_text(_launch(config, names))
        (aside / "vllm.sh").chmod(0o755)
        (aside / "README.md").write_text(_overview(config, names, checkpoint.name, merge))
        aside.rename(out)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise ConfigError(f"--out {out} cannot be written: {error}") from error
    say(console, f"written: {out} (start with {out}/README.md)")


def _write_adapter(checkpoint: Path, name: str, target: Path, config: Config) -> None:
    """One PEFT folder, its base named as users name it."""
    source = checkpoint / "adapters" / name
    target.mkdir()
    for file in _FILES:
        shutil.copyfile(source / file, target / file)
    settings = json.loads((source / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = model_folder(config.model.name_or_path)
    settings["revision"] = config.model.revision
    settings["inference_mode"] = True
    (target / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (target / "README.md").write_text(_card(config, name, checkpoint.name))


def _write_merged(adapter: Path, target: Path, config: Config, name: str) -> None:
    """W + (alpha / rank) B A as a checkpoint of its own, with tokenizer and card."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    base_folder = model_folder(config.model.name_or_path)
    options = {
        "revision": config.model.revision or "main",
        "trust_remote_code": config.model.trust_remote_code,
    }
    own_type = AutoModelForCausalLM.from_pretrained(base_folder, dtype="auto", **options).dtype
    base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32, **options)
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    merged.to(own_type).save_pretrained(str(target), safe_serialization=True)
    AutoTokenizer.from_pretrained(base_folder, **options).save_pretrained(str(target))
    (target / "README.md").write_text(
        f"# Agon policy {name}, merged\n\nThe base `{config.model.name_or_path}` with the adapter "
        f"`{name}` added to its weights in single precision and rounded once to {own_type}. The "
        "adapter's own folder holds its card.\n"
    )


def _front(config: Config, name: str) -> str:
    """The card's metadata, as the hub reads it."""
    base = config.model.name_or_path
    lines = ["library_name: peft", "pipeline_tag: text-generation"]
    if base != EMBEDDED and not Path(base).exists():
        lines.append(f"base_model: {base}")
    tags = "\n".join(f"- {tag}" for tag in ("lora", "agon", f"agon-policy-{name}"))
    return "---\n" + "\n".join(lines) + f"\ntags:\n{tags}\n---\n"


def _card(config: Config, name: str, step: str) -> str:
    """A model card of what is known: nothing is claimed that the run does not record."""
    adapters, reward = config.adapters, config.reward
    rival = "its rival" if config.game.policies == 2 else "itself"
    return f"""{_front(config, name)}
# Agon policy {name}

A LoRA adapter (rank {adapters.rank}, alpha {adapters.alpha:g}) over `{config.model.name_or_path}`,
trained on the task `{config.task.name}` with {rival}: in every step one policy drafts, the other
reads the draft's summary and answers. Credit: {reward.credit}. Taken from `{step}`. How well it
does is not stated here; the run's `evaluations/` says it where it was measured.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("{config.model.name_or_path}")
policy = PeftModel.from_pretrained(base, "{name}")
```

The policy expects the prompts that it was trained with; `README.md` of the folder above has them.
Sampled in training at temperature {config.sampling.temperature:g} from the whole vocabulary, at
most {config.sampling.max_new_tokens} tokens a reply.
"""


def _launch(config: Config, names: tuple[str, ...]) -> str:
    """VLLM with the adapters, and Agon's cascade in front of it."""
    rank = next((r for r in _VLLM_RANKS if r >= config.adapters.rank), config.adapters.rank)
    base = model_folder(config.model.name_or_path)
    modules = " ".join(f'agon-{name}="$HERE/{name}"' for name in names)
    return f"""#!/bin/sh
# vLLM with the adapters over one base. In front of it, the cascade:
#   agon serve RUN --upstream http://127.0.0.1:8001 --upstream-base base \\
#     {" ".join(f"--upstream-{name} agon-{name}" for name in names)}
HERE=$(cd "$(dirname "$0")" && pwd)
exec vllm serve {shlex.quote(base)} --served-model-name base --port 8001 \\
  --enable-lora --max-loras {len(names)} --max-lora-rank {rank} \\
  --lora-modules {modules}
"""


def _overview(config: Config, names: tuple[str, ...], step: str, merged: bool) -> str:
    """The folder's own page, with the prompts in full."""
    style = "compact" if config.model.name_or_path == EMBEDDED else "standard"
    plain, challenge, none = DEFAULTS["compact" if style == "compact" else "standard"]
    plain, challenge = config.prompts.plain or plain, config.prompts.challenge or challenge
    listed = "\n".join(f"- `{name}/`: adapter {name}, a PEFT folder" for name in names)
    if merged:
        listed += "".join(f"\n- `merged-{n}/`: base and adapter {n} in one" for n in names)
    return f"""# An Agon pair

From `{step}` of a run over `{config.model.name_or_path}`.

{listed}
- `vllm.sh`: starts vLLM with the adapters

Each prompt is one user turn in the model's own chat template
(template arguments: `{json.dumps(config.model.chat_template_kwargs)}`). The drafter's:

````text
{plain}
````

The challenger's is the same text followed by:

````text
{challenge}
````

`{{summary}}` is the content of the draft's `<summary>` block, cut at \
{config.game.max_summary_tokens} tokens, or
`{none.strip()}`
"""
