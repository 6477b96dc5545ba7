"""`electra sync`: everything that an experiment or a run has recorded, compared with MLflow, and what it lacks sent.

Unlike the mirror of the other verbs it trusts no note of what was sent, so that it also mends a store that lost runs,
and a server out of reach is an error (exit code 3): sending is all that was asked for.
"""

from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import DataError, PreflightError
from pipeline import story_words
from pipeline.console import Console, quiet_libraries
from pipeline.tracking import root_of
from pipeline.tracking import sync as mirror
from training.run_folder import RECORD


def sync(target: Path, console: Console) -> dict[str, Any]:
    """Mirror the experiment or the run that `target` names. PreflightError where another command holds the experiment,
    which mirrors it then, or where the store cannot be reached; DataError where there is no experiment."""
    quiet_libraries(offline=True)
    out, only = _named(target.resolve())
    if not out.is_dir():
        raise DataError(f"{target}: does not exist; name an experiment's folder (OUT) or a run's.")
    with storage.LocalFolder(root_of(out)).held(), console.stage("sync", unit="values") as stage:
        summary = mirror(out, only=only, thorough=True)
        stage.advance(summary.points)
    if summary.problem is not None:
        raise PreflightError(summary.problem)
    there = f"{story_words.plural(summary.runs, 'run')} and {story_words.plural(summary.finetunings, 'fine-tuning')}"
    sent = f"{summary.points:,} values were sent" if summary.points else "no value was missing"
    begun = f"{there} in MLflow at {summary.uri}: {sent}"
    console.say(f"sync: {begun if summary.runs else 'no run has written a metric line yet'}")
    return {
        "uri": summary.uri,
        "runs": summary.runs,
        "finetunings": summary.finetunings,
        "points": summary.points,
    }


def _named(target: Path) -> tuple[Path, str | None]:
    """The experiment's folder, and the run where it is one that is named."""
    if (target / RECORD).is_file():
        return target.parents[1], target.name
    return (target.parent if target.name == "runs" else target), None
