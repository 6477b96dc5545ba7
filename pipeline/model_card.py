"""The model card of an exported checkpoint, written from the run's own records."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.manifest import Manifest
from data_prep.settings import fingerprint
from pipeline import gather


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a card says about where a checkpoint comes from."""

    name: str
    run: dict[str, Any]
    done: dict[str, Any]
    manifest: Manifest
    results: list[dict[str, Any]]

    @classmethod
    def collect(cls, out: Path, run_dir: Path, done: dict[str, Any], manifest: Manifest) -> "Provenance":
        """Read the run's record and its evaluation results, if there are any."""
        results = [found for found in gather.read_results(out) if found["run"] == run_dir.name]
        return cls(out.name, gather.read_spec(run_dir), done, manifest, results)

    def fingerprint(self) -> str:
        """Hash of all that a card is made from."""
        return fingerprint([self.name, self.run, self.done, self.manifest.sha256, self.results])


_HEAD = """---
language: en
library_name: transformers
pipeline_tag: {pipeline_tag}
tags:
- electra
- {kind}
---

# {name}: ELECTRA {kind}

{what} Pre-trained with replaced-token detection (Clark et al., 2020) by the run `{run}`.

## Training

| | |
|---|---|
| steps × global batch × row length | {steps} × {batch} × {seq_len} |
| tokens | {tokens:,} |
| training FLOPs (matmuls × 3, generator included) | {flops:.3e} of a budget of {budget:.3e} |
| parameters trained (generator and discriminator) | {parameters:,} |
| hardware | {hardware}, {seconds:.0f} s |
| corpus | {documents:,} documents, {rows:,} rows, manifest `{manifest}` |
| tokenizer | vocabulary of {vocab:,}, `{tokenizer}` |
"""

_WHAT = {
    "discriminator": "Tells, for every token, whether it was replaced; the network to fine-tune.",
    "generator": "A small masked language model that proposes the replacements.",
}

_USE = """
## Use

```python
from transformers import {auto}, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("{kind}")
model = {auto}.from_pretrained("{kind}")
```

Weights are fp32. Licence and fitness follow from the corpus it was trained on; a tiny budget makes a demonstration,
not a model to rely on.
"""


def card(kind: str, provenance: Provenance) -> str:
    """The README.md of one folder."""
    identity, done, manifest = provenance.run["identity"], provenance.done, provenance.manifest
    head = _HEAD.format(
        kind=kind,
        pipeline_tag="fill-mask" if kind == "generator" else "feature-extraction",
        name=provenance.name,
        what=_WHAT[kind],
        run=provenance.run["name"],
        steps=done["step"],
        batch=identity["global_batch"],
        seq_len=identity["seq_len"],
        tokens=done["tokens"],
        flops=done["flops_counted"],
        budget=done["budget"],
        parameters=done["parameters"],
        hardware=done["hardware"],
        seconds=done["seconds"],
        documents=manifest.documents.train,
        rows=manifest.train.rows,
        manifest=manifest.sha256[:16],
        vocab=manifest.vocab_size,
        tokenizer=manifest.tokenizer_sha256[:16],
    )
    auto = "AutoModelForPreTraining" if kind == "discriminator" else "AutoModelForMaskedLM"
    scores = _scores(provenance.results) if kind == "discriminator" else ""
    return head + scores + _USE.format(kind=kind, auto=auto)


def _scores(results: list[dict[str, Any]]) -> str:
    if not results:
        return ""
    lines = [
        "",
        "## Evaluation (fine-tuned)",
        "",
        "| suite | task | fine-tuning seed | metric | score | majority class | examples |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in sorted(results, key=lambda r: (r["suite"], r["task"], r["finetune_seed"])):
        lines.append(
            f"| {found['suite']} | {found['task']}{' (subset)' if found['subset'] else ''} "
            f"| {found['finetune_seed']} | {found['metric']} | {found['score']:.3f} "
            f"| {found['majority']:.3f} | {found['n_dev']} |"
        )
    return "\n".join([*lines, ""])
