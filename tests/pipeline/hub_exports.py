"""Exported folders to push, made in a moment: right in all that pushing looks at, with weights that are only bytes."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from data_prep.storage import sha256_of
from pipeline import card_metadata

CARD = """
# small: {kind}

```python
name = "{kind}"
```
"""


def metadata(step: int = 100, flops: float = 2.4e12) -> dict[str, object]:
    """What a card says of itself."""
    return {
        "language": "en",
        "license": "other",
        "license_name": card_metadata.UNSTATED,
        "library_name": "transformers",
        "pipeline_tag": "feature-extraction",
        "tags": ["electra", "pretraining"],
        "electra": {"run": "electra-2.40e+12-s0", "step": step, "tokens": 1000 * step, "flops": flops},
    }


def write_model(folder: Path, *, step: int = 100, flops: float = 2.4e12, shards: int = 1, values: int = 20_000) -> Path:
    """One network's folder. Weights are a function of step and shard."""
    folder.mkdir(parents=True)
    for shard in range(shards):
        weights = np.random.default_rng([step, shard, len(folder.name)]).random(values, dtype=np.float32)
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({f"w{shard}": weights}, folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": "electra", "hidden_size": 16}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"[PAD]": 0, "the": 1}}}))
    (folder / "README.md").write_text(card_metadata.front(metadata(step, flops)) + CARD.format(kind=folder.name))
    return folder


def write_export(folder: Path, *, kinds: tuple[str, ...] = ("discriminator",), step: int = 100, **more: int) -> Path:
    """As `electra export` leaves it: a folder a network, and the record of what was proved."""
    files = {}
    for kind in kinds:
        made = write_model(folder / kind, step=step, flops=2.4e10 * step, **more)
        files[kind] = {one.name: {"bytes": one.stat().st_size, "sha256": sha256_of(one)} for one in made.iterdir()}
    (folder / "export.json").write_text(json.dumps({"files": files}))
    return folder
