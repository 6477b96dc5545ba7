"""The model card of an exported checkpoint, written from the run's own records."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.manifest import Manifest
from data_prep.settings import fingerprint
from pipeline import gather
from pipeline.origins import Origin, inherited, origins, own
from pipeline.proof import auto_class
from pipeline.wording import OBJECTIVES


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
- {objective}
- {kind}
---

# {name}: {kind}

{what} Pre-trained with {words} by the run `{run}`.

## Training

| | |
|---|---|
| steps × global batch × row length | {steps} × {batch} × {seq_len} |
| tokens | {tokens:,} |
| training FLOPs (matmuls, everything included) | {flops:.3e} of a budget of {budget:.3e} |
{began_with}| parameters of all networks | {parameters:,} |
| hardware | {hardware}, {seconds:.0f} s |
| corpus | {documents:,} documents, {rows:,} rows, manifest `{manifest}` |
| tokenizer | vocabulary of {vocab:,}, `{tokenizer}` |
"""

_WHAT = {
    "discriminator": "Tells, for every token, whether it was replaced; the network to fine-tune.",
    "generator": "A masked language model that proposes the replacements.",
    "encoder": "A masked language model; the network to fine-tune.",
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


def card(kind: str, architecture: str, provenance: Provenance) -> str:
    """The README.md of one folder, which holds a model of class `architecture`."""
    identity, done, manifest = provenance.run["identity"], provenance.done, provenance.manifest
    objective, auto = provenance.run["objective"], auto_class(architecture)
    head = _HEAD.format(
        kind=kind,
        pipeline_tag="fill-mask" if auto == "AutoModelForMaskedLM" else "feature-extraction",
        objective=objective,
        words=OBJECTIVES[objective],
        name=provenance.name,
        what=_WHAT[kind],
        run=provenance.run["name"],
        steps=done["step"],
        batch=identity["global_batch"],
        seq_len=identity["seq_len"],
        tokens=done["tokens"],
        flops=done["flops_counted"],
        budget=done["budget"],
        began_with=_began_with(provenance),
        parameters=done["parameters"],
        hardware=done["hardware"],
        seconds=own(done)["seconds"],
        documents=manifest.documents.train,
        rows=manifest.train.rows,
        manifest=manifest.sha256[:16],
        vocab=manifest.vocab_size,
        tokenizer=manifest.tokenizer_sha256[:16],
    )
    scores = "" if kind == "generator" else _scores(provenance.results)
    return head + scores + _USE.format(kind=kind, auto=auto)


def _began_with(provenance: Provenance) -> str:
    """Rows of the table on earlier weights: whose, and how much of the figures is theirs; none where there are none."""
    run, done = provenance.run, provenance.done
    found = origins(run["identity"], run["placement"])
    if not found:
        return ""
    rows = [f"| began with | {_origin(one)} |" for one in found]
    shares = {"of all that, this run's own": own(done), "of all that, inherited": inherited(done)}
    rows += [
        f"| {whose} | {part['flops_counted']:.3e} FLOPs, {part['tokens']:,} tokens, {part['seconds']:.0f} s |"
        for whose, part in shares.items()
    ]
    return "\n".join([*rows, ""])


def _origin(one: Origin) -> str:
    use = " as its generator" if one.generator_only else ""
    if one.step is None:
        return f"Hugging Face folder `{one.name}`{use}, weights `{one.identity[:16]}`; cost unknown, in no figure here"
    return f"run `{one.name}`{use}, step {one.step}, identity `{one.identity[:16]}`; cost inherited"


def _scores(results: list[dict[str, Any]]) -> str:
    if not results:
        return ""
    lines = [
        "",
        "## Evaluation (fine-tuned; BLiMP is not)",
        "",
        "| suite | task | fine-tuning seed | metric | score | majority class | examples |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in sorted(gather.condensed(results), key=lambda r: (r["suite"], r["task"], r["finetune_seed"])):
        lines.append(
            f"| {found['suite']} | {found['task']}{' (subset)' if found['subset'] else ''} "
            f"| {found['finetune_seed']} | {found['metric']} | {found['score']:.3f} "
            f"| {found['majority']:.3f} | {found['n_dev']} |"
        )
    return "\n".join([*lines, ""])
