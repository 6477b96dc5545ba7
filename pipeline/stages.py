"""The stages of the road, one function each: what a verb does once its configuration is read.

A stage takes a `Place` (`pipeline.place`), calls the part that owns the work, shows its progress and returns a small
JSON-able result. Every stage resumes, so running one again costs little. Heavy imports stay inside the functions.
"""

import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import CheckError
from pipeline.corpora import MAIN, prepared
from pipeline.place import Place, shown
from pipeline.train_stage import train

Result = dict[str, Any]
Stage = Callable[..., Result]  # of a Place, and of what the verb's own options are


def timed(name: str, stage: Stage, place: Place) -> Result:
    """Run a stage and leave its beginning, end and duration in the event log and in the result."""
    started = time.monotonic()
    place.folder.event(name, "started")
    try:
        result = stage(place)
    except BaseException as error:
        place.folder.event(name, "stopped", seconds=_since(started), error=type(error).__name__)
        raise
    place.folder.event(name, "done", seconds=_since(started))
    return {**result, "seconds": _since(started)}


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


# --- the stages -------------------------------------------------------------------------------------------------------


def prepare(place: Place) -> Result:
    """Every corpus, unit by unit; the figures of `corpora` are below their names. CheckError where they are not of the
    same documents: before anything is trained on them."""
    from pipeline.matching_streams import other_documents

    named = {name: _prepare(place, name) for name in place.folder.corpora}
    manifests = {name: reading.manifest for name, reading in prepared(place.folder.corpora).items()}
    for breach in other_documents(manifests):
        raise CheckError(
            f"{shown(place.folder.path)}: {breach} Its sources have changed between the two: remove the folder of one "
            "and run `electra prepare` again."
        )
    return {**named.pop(MAIN), **({"corpora": named} if named else {})}


def _prepare(place: Place, name: str) -> Result:
    from pipeline.prepare import prepare as prepare_corpus

    if name:
        place.console.say(f"prepare: corpora.{name}")
    said = {"corpus": name} if name else {}
    manifest = prepare_corpus(
        place.experiment.corpus_configs()[name],
        place.folder.corpora[name],
        place.experiment.seed,
        console=place.console,
        on_event=lambda event, **details: place.folder.event("prepare", event, **said, **details),
        start_ray=place.start_ray,
    )
    return {
        "manifest_sha256": manifest.sha256,
        "documents": manifest.documents.out,
        "train_rows": manifest.train.rows,
        "heldout_rows": manifest.heldout.rows,
        "train_tokens": manifest.train.tokens,
    }


def evaluate(place: Place, *, tables: bool = True) -> Result:
    """Every finished run on every task of the suites."""
    from pipeline import evaluate_table
    from pipeline.evaluate import evaluate as evaluate_runs

    config = place.experiment.evaluation
    results = evaluate_runs(place.folder.path, config, console=place.console, before_work=place.start_ray)
    if tables:
        evaluate_table.show(results, place.console)
        place.console.say(f"evaluation: {shown(place.folder.evaluation / 'report.html')}")
    return {"suites": config.suites, "results": len(results), **evaluate_table.as_json(results)}


def report(place: Place) -> Result:
    """One HTML file with curves and tables, and the same as JSON."""
    from pipeline.report import write

    before = _hash(place.folder.report / "report.html")
    with place.console.stage("report"):
        path = write(place.folder.path)
    place.worked |= _hash(path) != before
    place.console.say(f"report: {shown(path)}")
    return {"report": str(path)}


def _hash(path: Path) -> str | None:
    return storage.sha256_of(path) if path.exists() else None


def track(place: Place) -> Result:
    """Mirror what is new into MLflow."""
    from pipeline.tracking import sync

    with place.console.stage("track", unit="values") as stage:
        summary = sync(place.folder.path, console=place.console)
        stage.advance(summary.points, runs=summary.runs, finetunings=summary.finetunings)
    place.worked |= summary.changed > 0
    return {"uri": summary.uri, "reachable": summary.reachable, "runs": summary.runs}


def export(place: Place) -> Result:
    """The last checkpoint of the largest run that detects replaced tokens as Hugging Face folders, proved against the
    training model."""
    from pipeline.export_sources import of_experiment
    from pipeline.export_verb import export_and_tell

    result = export_and_tell(of_experiment(place.folder.path), place.folder.export, place.console)
    place.worked |= any(one["new"] for one in result["exported"])
    return result


# What a verb runs, and the verb that comes next.
VERBS: dict[str, tuple[tuple[Stage, ...], str]] = {
    "prepare": ((prepare,), "train"),
    "train": ((train, track), "evaluate"),
    "evaluate": ((evaluate, track), "report"),
    "report": ((report, track), "export"),
}


def run(verb: str, place: Place, **options: Any) -> Result:
    """Run a verb's stages, the first with the verb's own `options`, and say what to do next. The result is the first
    stage's."""
    (first, *rest), following = VERBS[verb]
    result = timed(first.__name__, partial(first, **options), place)
    for stage in rest:
        timed(stage.__name__, stage, place)
    place.console.say(f"next: electra {following} {shlex.quote(shown(place.folder.path))}")
    return result
