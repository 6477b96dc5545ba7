"""A run's records in MLflow's terms: points, tags, parameters and the data set. Pure: no store is spoken to."""

import json
import math
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline import gather, tracking_cursor
from pipeline.corpora import stored_name, stored_place
from pipeline.gather import Contents, Run
from pipeline.mlflow_store import DataSet, Point, flatten

PACKAGE = "electra-pretraining"
_RESUMES_AT = {"started": "step", "saved": "step", "rollback": "to_step"}  # events, and where they say it
_DIGEST = 36  # characters that MLflow keeps of a data set's hash


def ms(seconds: float) -> int:
    """MLflow's clock: milliseconds since 1970."""
    return round(seconds * 1000)


def first_time(run_dir: Path) -> int | None:
    """When a run's first metric line was written, ms; None before. Lines are only appended, so it never changes."""
    for path in sorted((run_dir / "metrics").glob("A-*.jsonl")):
        with path.open(encoding="utf-8") as file:
            line = file.readline()
        if line.endswith("\n"):  # otherwise torn by a kill
            return ms(json.loads(line)["time"])
    return None


def settled(run: Run) -> list[dict[str, Any]]:
    """The lines that no restart is to redo: all of a finished run's, otherwise those up to the step that it resumes at
    by its events, if that checkpoint is still whole by then."""
    if run.done is not None:
        return run.lines
    steps = [event[_RESUMES_AT[event["event"]]] for event in run.events if event["event"] in _RESUMES_AT]
    return [line for line in run.lines if steps and line["step"] <= steps[-1]]


def points_of(line: dict[str, Any]) -> list[Point]:
    """A metric line's numbers; `attempt` comes with every line and tells later calls that it arrived."""
    values = {**line["values"], "attempt": line["attempt"]}
    when, step = ms(line["time"]), int(line["step"])
    return [Point(name, float(value), when, step) for name, value in values.items() if _is_number(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not (isinstance(value, float) and math.isinf(value))


def totals(done: dict[str, Any], when: int) -> list[Point]:
    """The totals of a finished run as metrics `done/…` at its last step."""
    flops = ("flops_counted", "flops_spent", "flops_executed", "flops_paper")
    names = (*flops, "tokens", "seconds", "tokens_per_second")
    return [Point(f"done/{name}", float(done[name]), when, int(done["step"])) for name in names if name in done]


def parameters(run: Run) -> dict[str, str]:
    """What is known of a run before it begins, and what of its end is no metric."""
    found: dict[str, Any] = {"identity": run.identity, "placement": run.placement}
    found |= {"budget": run.budget, "seed": run.seed, "inherited": run.inherited, "flops_per_step": run.flops_per_step}
    names = ("parameters", "world_size", "hardware", "checkpoint")
    return flatten(found | {name: run.done[name] for name in names if run.done is not None and name in run.done})


def tags(run: Run, stage: str) -> dict[str, str]:
    """What runs are searched for and grouped by."""
    whole = {"electra.kind": "training", "electra.arm": run.arm}
    return {
        **(whole if run.part_of is None else {"electra.kind": "first stage", "electra.part_of": run.part_of}),
        "electra.stage": stage,
        "electra.superseded": "false",
        "electra.objective": run.objective,
        "electra.budget": f"{run.budget:.6g}",
        "electra.seed": str(run.seed),
        "electra.manifest_sha256": str(run.identity.get("manifest_sha256", "")),
        "electra.tokenizer_sha256": str(run.identity.get("tokenizer_sha256", "")),
    }


def data_set(run: Run, contents: Contents, experiment: str) -> DataSet | None:
    """The corpus that a run reads, by its manifest's hash; None of a run that names none. Its rows and tokens are told
    where that corpus is still the experiment's."""
    digest = str(run.identity.get("manifest_sha256", ""))
    if not digest:
        return None
    corpus = contents.config.get("corpus") or {}
    place = stored_place(contents.config, stored_name(contents.config, run.arm), contents.out.absolute()).location
    location = place if "://" in place else Path(place).as_uri()
    origins = [_origin(source) for source in corpus.get("sources", [])]
    manifest, profile = contents.manifest_of(run), {}
    if manifest is not None and manifest.sha256 == digest:
        profile = {
            f"{name}_{what}": getattr(manifest.split(name), what)
            for name in ("train", "heldout")
            for what in ("rows", "tokens")
        } | {"seq_len": manifest.seq_len, "layout": manifest.layout, "vocab_size": manifest.vocab_size}
    return DataSet(
        name=experiment,
        digest=digest[:_DIGEST],
        kind=location.partition("://")[0] if "://" in location and not location.startswith("file:") else "local",
        source=json.dumps({"uri": tracking_cursor.public(location), "manifest_sha256": digest, "sources": origins}),
        profile=json.dumps(profile),
    )


def _origin(source: dict[str, Any]) -> dict[str, Any]:
    """A source without what an address may hold of a password."""
    return {name: tracking_cursor.public(value) if isinstance(value, str) else value for name, value in source.items()}


def results_of(contents: Contents, runs: dict[str, Run]) -> list[dict[str, Any]]:
    """The fine-tunings of these runs; BLiMP's paradigms as one."""
    return [result for result in gather.condensed(contents.results) if result["run"] in runs]


@cache
def code_version() -> dict[str, str]:
    """The commit of this code and whether it was changed since, where it is a git checkout; else the package's
    version."""
    root = Path(__file__).resolve().parent.parent
    if (root / ".git").exists():
        try:
            commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
            dirty = str(bool(changes)).lower()
            return {"electra.code": commit, "mlflow.source.git.commit": commit, "electra.git_dirty": dirty}
        except (OSError, subprocess.SubprocessError):  # no git here, or no commit yet
            pass
    try:
        return {"electra.code": metadata.version(PACKAGE)}
    except metadata.PackageNotFoundError:
        return {"electra.code": "unknown"}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
