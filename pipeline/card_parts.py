"""Sections of a model card that need no record of the run as a whole: data, power, scores, limits, use, citation."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from data_prep.manifest import Manifest
from pipeline.card_metadata import NAMED
from pipeline.card_scores import Score
from pipeline.devices import DEVICES
from pipeline.wording import hours_text

WHAT = {
    "discriminator": "Tells, for every token, whether it was replaced; the network to fine-tune.",
    "generator": "A masked language model that proposes the replacements.",
    "encoder": "A masked language model; the network to fine-tune.",
}

# What is known of a kind of source without asking; of the rest only who prepared the corpus knows.
_LICENCES = {
    "installed_docs": "that of each Python package whose documentation it is",
    "wikipedia": "CC BY-SA (4.0; dumps of before June 2023: 3.0)",
}
_UNKNOWN = "not recorded"

# Words of a GPU's name as its driver gives it, and the device of the table; the PCIe versions draw less and are none.
_GPUS = (("H200", "h200"), ("H100", "h100"), ("A100", "a100"), ("V100", "v100"), ("L40S", "l40s"), ("4090", "rtx4090"))

CITATION = """
## Citation

```bibtex
@inproceedings{clark2020electra,
  title     = {{ELECTRA}: Pre-training Text Encoders as Discriminators Rather Than Generators},
  author    = {Kevin Clark and Minh-Thang Luong and Quoc V. Le and Christopher D. Manning},
  booktitle = {International Conference on Learning Representations},
  year      = {2020},
  url       = {https://openreview.net/forum?id=r1xMH1BtvB}
}
```
"""


def pipeline_tag(architecture: str) -> str:
    """What the Hub offers a model of this class for."""
    return "fill-mask" if architecture.endswith("ForMaskedLM") else "feature-extraction"


def paper_flops(flops: float | None) -> str:
    """The row of the paper's convention; none for a record of before it was counted."""
    return "" if flops is None else f"| training FLOPs (the ELECTRA paper's convention) | {flops:.3e} |\n"


def power(hardware: str, seconds: float, devices: int) -> str:
    """Rows of device-hours, and of what they come to at the boards' rated power; that is an upper estimate of the
    boards alone, not a measurement, and says so. No power for a device that the table does not have."""
    hours = seconds * devices / 3600
    rows = f"| device-hours (processes × hours) | {hours_text(hours)} |\n"
    name = next((name for word, name in _GPUS if word in hardware and "PCIe" not in hardware), None)
    if name is None or (watts := DEVICES[name].watts) is None:
        return rows + "| energy | unknown: the device's rated power is not in our table |\n"
    kwh = hours * watts / 1000
    return rows + f"| energy, hours × rated power ({watts:.0f} W; not measured, boards alone) | {kwh:.3g} kWh |\n"


def data(sources: Sequence[dict[str, Any]], manifest: Manifest) -> str:
    """Where the text comes from, and under which licences."""
    lines = ["", "## Data", "", "| source | training tokens | licence of the text |", "|---|---|---|"]
    for index, stats in enumerate(manifest.sources):
        said = sources[index] if index < len(sources) else {}
        licence = said.get("licence") or _LICENCES.get(stats.kind, _UNKNOWN)
        lines.append(f"| {_source(stats.kind, said)} | {stats.train.tokens:,} | {' '.join(licence.split())} |")
    lines += ["", f"SHA-256 of the corpus's manifest: `{manifest.sha256}`; of its inputs: `{manifest.inputs_sha256}`."]
    return "\n".join([*lines, ""])


def hub_datasets(sources: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the sources that are data sets on the Hub for certain: those that say a revision; others of such a name
    may be folders."""
    paths = [str(said.get("path")) for said in sources if said.get("kind") == "datasets" and said.get("revision")]
    return list(dict.fromkeys(path for path in paths if NAMED.fullmatch(path)))


def _source(kind: str, said: dict[str, Any]) -> str:
    """Its kind and the last part of its path: where it lay on a disk is nobody's business."""
    path = said.get("path")
    return f"{kind} `{PurePosixPath(str(path)).name}`" if path else kind


def evaluation(found: Sequence[Score]) -> str:
    """A table of the scores, and how they were made; nothing where there are none."""
    if not found:
        return ""
    lines = [
        "",
        "## Evaluation",
        "",
        "On development sets. Intervals are 95 %, over examples (and fine-tunings, where there are several); they do "
        "not cover another seed of pre-training.",
        "",
        "| suite | task | metric | score | interval | majority class | examples | fine-tunings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        between = "unknown" if one.interval is None else f"{one.interval[0]:.3f} to {one.interval[1]:.3f}"
        task = f"{one.task} (subset)" if one.subset else one.task
        lines.append(
            f"| {one.suite} | {task} | {one.metric} | {one.value:.3f} | {between} | {one.majority:.3f} "
            f"| {one.n_dev} | {one.finetunings or 'none'} |"
        )
    protocols = [_protocol(one.protocol) for one in found if one.finetunings and one.protocol]
    return "\n".join([*lines, "", *dict.fromkeys(protocols), ""])


def _protocol(protocol: dict[str, Any]) -> str:
    keys = ("learning_rate", "epochs", "batch_size", "max_length", "layer_decay", "warmup_fraction", "weight_decay")
    numbers = ", ".join(f"{key.replace('_', ' ')} {protocol[key]:g}" for key in keys if protocol.get(key) is not None)
    return f"Fine-tuned under the protocol `{protocol.get('name', 'unnamed')}`: {numbers}."


def limits(kind: str) -> str:
    """What it is for, what it is not for, and what is not known."""
    use = "as the generator of a discriminator, and to look at" if kind == "generator" else "to be fine-tuned on a task"
    return f"""
## Intended use and limits

- It is for research on pre-training, and {use}; it generates no text and answers no questions as it is.
- It knows what its corpus says, with that corpus's mistakes and prejudices; none were looked for or removed.
- Trained on a small budget it is a demonstration, not a model to rely on: its scores are all that is known of it.
- The licence of the weights is what the block at the top says; `not-stated` there means that nobody has given one. What
  may be done with them depends on the licences of the data too.
"""


_DISCRIMINATOR = """
ids = tokenizer("The chef ate the meal", return_tensors="pt")
with torch.no_grad():
    replaced = torch.sigmoid(model(**ids).logits)[0]
for piece, p in zip(tokenizer.convert_ids_to_tokens(ids["input_ids"][0]), replaced.tolist()):
    print(f"{p:.2f} {piece}")
"""

_MASKED = """
ids = tokenizer(f"The chef ate the {tokenizer.mask_token}", return_tensors="pt")
with torch.no_grad():
    logits = model(**ids).{output}[0]
where = (ids["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0, 0]
print(tokenizer.convert_ids_to_tokens(logits[where].topk(5).indices.tolist()))
"""


def use(kind: str, auto: str, architecture: str, dtype: str) -> str:
    """How it is loaded and run; where it lies is the one line that `model_card.for_repository` changes."""
    output = "prediction_logits" if architecture == "BertForPreTraining" else "logits"
    body = _DISCRIMINATOR if architecture == "ElectraForPreTraining" else _MASKED.replace("{output}", output)
    return f"""
## Use

```python
import torch
from transformers import {auto}, AutoTokenizer

name = "{kind}"  # the folder that this card lies in
tokenizer = AutoTokenizer.from_pretrained(name)
model = {auto}.from_pretrained(name).eval()
{body}```

Weights are {dtype}.
"""
