"""The model card of an exported checkpoint, written from the run's own records.

`write` puts README.md and, where a score is on a data set that the Hub knows, `.eval_results/` into an exported folder;
`card` is the README alone. Everything in it is in a record, or said to be unknown: the licence of the weights is stated
by whoever publishes them (`electra push --license`). Paths, hosts and secrets are left out. Where it lies on the Hub is
known only when it is sent: `for_repository`.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.manifest import Manifest
from data_prep.redact import redact, redacted
from data_prep.settings import fingerprint
from pipeline import card_metadata, card_parts, card_scores, gather
from pipeline.card_metadata import CARD, RESULTS, UNSTATED
from pipeline.card_scores import Score
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
    sources: list[dict[str, Any]]  # of the corpus, as configured
    out: Path

    @classmethod
    def collect(cls, out: Path, run_dir: Path, done: dict[str, Any], manifest: Manifest) -> "Provenance":
        """Read the run's record and its evaluation results, if there are any."""
        results = [found for found in gather.read_results(out) if found["run"] == run_dir.name]
        sources = (gather.read_config(out).get("corpus") or {}).get("sources") or []
        return cls(out.name, gather.read_spec(run_dir), done, manifest, results, sources, out)

    def fingerprint(self) -> str:
        """Hash of all that a card is made from."""
        return fingerprint([self.name, self.run, self.done, self.manifest.sha256, self.results, self.sources])


_HEAD = """
# {name}: {kind}

{what} Pre-trained with {words} by the run `{run}`.

## Training

| | |
|---|---|
| steps × global batch × row length | {steps} × {batch} × {seq_len} |
| tokens | {tokens:,} |
| training FLOPs (matmuls, everything included) | {flops:.3e} of a budget of {budget:.3e} |
{paper}{began_with}| parameters of all networks | {parameters:,} |
| hardware | {hardware}, {seconds:.0f} s |
{power}| corpus | {documents:,} documents, {rows:,} rows, manifest `{manifest}` |
| tokenizer | vocabulary of {vocab:,}, `{tokenizer}` |
"""


def write(folder: Path, kind: str, architecture: str, provenance: Provenance, dtype: str = "fp32") -> None:
    """Put the card, and the scores that the Hub reads from files, into an exported folder."""
    found = _scores_of(kind, provenance)
    storage.write_bytes(folder / CARD, _text(kind, architecture, provenance, found, dtype).encode())
    shutil.rmtree(folder / RESULTS, ignore_errors=True)
    for name, entries in card_scores.eval_results(found).items():
        storage.write_bytes(storage.make_folder(folder / RESULTS) / name, card_metadata.dump(entries).encode())


def card(kind: str, architecture: str, provenance: Provenance, dtype: str = "fp32") -> str:
    """The README.md of one folder, which holds a model of class `architecture` with weights of `dtype`."""
    return _text(kind, architecture, provenance, _scores_of(kind, provenance), dtype)


def for_repository(text: str, repository: str) -> str:
    """The card with the name on the Hub in its example in place of the folder's."""
    return re.sub(r'^name = "[^"\n]*".*$', lambda _: f'name = "{repository}"', text, count=1, flags=re.MULTILINE)


def _scores_of(kind: str, provenance: Provenance) -> list[Score]:
    """A generator's own are those of BLiMP that say so; the rest are of the main network."""
    results = [one for one in provenance.results if (one["suite"] == "blimp_generator") == (kind == "generator")]
    return card_scores.scores(provenance.out, results)


def _text(kind: str, architecture: str, provenance: Provenance, found: list[Score], dtype: str) -> str:
    metadata = card_metadata.front(redacted(_metadata(kind, architecture, provenance, found)))
    auto = auto_class(architecture)
    parts = [
        _head(kind, provenance),
        card_parts.data(provenance.sources, provenance.manifest),
        card_parts.evaluation(found),
        card_parts.limits(kind),
        card_parts.use(kind, auto, architecture, dtype),
        card_parts.CITATION,
    ]
    return metadata + redact("".join(part for part in parts if part))


def _metadata(kind: str, architecture: str, provenance: Provenance, found: list[Score]) -> dict[str, Any]:
    done, run = provenance.done, provenance.run
    return {
        "language": "en",
        "license": "other",
        "license_name": UNSTATED,
        "library_name": "transformers",
        "pipeline_tag": card_parts.pipeline_tag(architecture),
        "tags": [run["objective"], kind, "pretraining"],
        **({"datasets": names} if (names := card_parts.hub_datasets(provenance.sources)) else {}),
        "electra": {
            **{"run": run["name"], "step": done["step"], "tokens": done["tokens"]},
            "flops": float(done["flops_counted"]),
        },
    } | ({"model-index": index} if (index := card_scores.model_index(f"{provenance.name}-{kind}", found)) else {})


def _head(kind: str, provenance: Provenance) -> str:
    identity, done, manifest = provenance.run["identity"], provenance.done, provenance.manifest
    return _HEAD.format(
        kind=kind,
        words=OBJECTIVES[provenance.run["objective"]],
        name=provenance.name,
        what=card_parts.WHAT[kind],
        run=provenance.run["name"],
        steps=done["step"],
        batch=identity["global_batch"],
        seq_len=identity["seq_len"],
        tokens=done["tokens"],
        flops=done["flops_counted"],
        budget=done["budget"],
        paper=card_parts.paper_flops(done.get("flops_paper")),
        began_with=_began_with(provenance),
        parameters=done["parameters"],
        hardware=done["hardware"],
        seconds=own(done)["seconds"],
        power=card_parts.power(done["hardware"], own(done)["seconds"], done["world_size"]),
        documents=manifest.documents.train,
        rows=manifest.train.rows,
        manifest=manifest.sha256[:16],
        vocab=manifest.vocab_size,
        tokenizer=manifest.tokenizer_sha256[:16],
    )


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
