"""The training stage: every run of an experiment that is not done, by whatever launcher, and what a person sees of it.

It plans the runs, hands them to those that train (Ray's workers, ranks of another launcher, this process), and follows
their metric lines and events: a bar in FLOPs, what happens to each run (`pipeline.telling`), MLflow every half minute,
and at the end which runs learned nothing and the goodput. A stop that comes too late for any run ends the command here.
"""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import StoppedError
from pipeline import corpora, gather, story_words
from pipeline.events import story_of
from pipeline.place import Place, shown
from pipeline.sweep import rated
from pipeline.telling import telling
from pipeline.tracking_live import Mirror
from training import requests
from training.run_folder import is_done
from training.settings import RunSpec


def train(place: Place, profile: int = 0) -> dict[str, Any]:
    """Every run that is not done, from its newest checkpoint, mirrored into MLflow as it goes. Of the first of them, so
    many steps as `profile` says are traced.

    The bar counts model FLOPs: a step of one arm costs more than a step of another, so only they give an honest ETA.
    """
    folder = place.folder
    experiment = rated(place.experiment, folder.path)
    specs = experiment.runs(corpora.prepared(folder.corpora), folder.runs)
    finished = [spec for spec in specs if is_done(folder.runs / spec.name, spec)]
    result: dict[str, Any] = {"runs": [spec.name for spec in specs], "trained": len(specs) - len(finished)}
    if len(finished) == len(specs):
        place.console.say(f"train: all {len(specs)} runs are done" + (", none was traced" if profile else ""))
        heed_a_stop(place)
        return result
    train_runs = _launched(place)
    done = {spec.name: spec.flops_by(spec.steps) for spec in finished}
    total = sum(spec.flops_by(spec.steps) for spec in specs)
    scale, unit = _unit(total)
    corpora_of = {run: folder.corpora[name] for run, name in experiment.corpus_by_run(specs).items()}
    mirror, waiting = Mirror(folder.path, place.console), [spec for spec in specs if spec not in finished]
    followed = telling(place.console, [folder.runs / spec.name for spec in waiting])
    with place.console.stage("train", total / scale, unit) as stage, followed:
        stage.update(sum(done.values()) / scale)

        def on_progress(spec: RunSpec, line: dict[str, Any]) -> None:
            done[spec.name] = spec.flops_by(line["step"])
            step = f"{line['step']}/{spec.steps}"
            stage.update(sum(done.values()) / scale, run=spec.name, step=step, **_figures(line["values"]))
            mirror.now_and_then()

        try:
            train_runs(specs, corpora_of, folder.runs, experiment.cluster, on_progress, profile)
        except StoppedError:
            mirror.close()
            raise
        stage.update(total / scale)
    trained = [spec.name for spec in waiting]
    _warn_degenerate(place, trained)
    if profile:
        _show_profile(place, folder.runs / trained[0])
    goodput = _tell_goodput(place, trained)
    heed_a_stop(place)
    return {**result, "goodput": goodput}


def heed_a_stop(place: Place) -> None:
    """StoppedError where a stop was asked for when no run was left to answer it: nothing that follows training is
    begun."""
    asked = requests.read(place.folder.runs)
    if asked is not None and asked.what == "stop":
        raise StoppedError(
            f"stopped when all runs were trained ({asked.reason}); the same command again does what follows"
        )


def _launched(place: Place) -> Callable[..., None]:
    """What trains runs: the processes that this is one of, this process alone, or workers that Ray starts."""
    place.worked = True
    if place.ranks is not None:
        return place.ranks.train_runs
    if place.experiment.cluster.num_workers == 0:
        from cluster.launch import alone

        return alone().train_runs
    from cluster.trainer import train_runs

    place.start_ray()
    return train_runs


def _show_profile(place: Place, run: Path) -> None:
    """What took most time of the steps that were traced, and where the trace lies."""
    from training.profile import FOLDER, WORDS, top

    if not (run / FOLDER / WORDS).exists():
        place.console.warn(f"{run.name}: had no step left to trace")
        return
    place.console.say(f"profile: {run.name}: {shown(run / FOLDER)}")
    for line in top(run):
        place.console.say(f"  {line}")


def _warn_degenerate(place: Place, runs: Sequence[str]) -> None:
    """Which runs ended with a network that learned nothing: their loss may look healthy."""
    for run in runs:
        if verdict := gather.read_done(place.folder.runs / run).get("degenerate"):
            place.console.warn(f"{run}: at the end of training {verdict}", run=run)


def _tell_goodput(place: Place, runs: Sequence[str]) -> float | None:
    """Of these runs together: how much of their time was spent in steps that count, and what was lost on the way."""
    found = [totals for run in runs if (totals := story_of(place.folder.runs / run).totals) is not None]
    useful, wall = sum(one.useful_seconds for one in found), sum(one.wall_seconds for one in found)
    if wall <= 0:
        return None
    text = f"train: {story_words.goodput(useful, wall)}"
    again, back = sum(one.attempts - 1 for one in found), sum(one.rollbacks for one in found)
    if again or back:
        lost = story_words.plural(sum(one.steps_lost for one in found), "step")
        what = f"{story_words.plural(again, 'resumption')} and {story_words.plural(back, 'rollback')}"
        text += f"; {what}, {lost} lost: see electra events {shlex.quote(shown(place.folder.path))}"
    place.console.say(text)
    return useful / wall


# What is shown of a metric line, under which name and how; a line has those that there are.
_FIGURES: dict[str, tuple[str, Callable[[float], float | str]]] = {
    "train/loss": ("loss", float),
    "heldout/loss": ("heldout", float),
    "tokens_per_second": ("tokens/s", round),
    "flops_per_second": ("GFLOPs/s", lambda value: value / 1e9),
    "mfu": ("MFU", "{:.1%}".format),
    "data_wait": ("data wait", "{:.2%}".format),
    "communication_wait": ("communication wait", "{:.2%}".format),
    "memory_peak": ("memory peak", lambda value: f"{value / 2**30:.2f} GiB"),
}


def _figures(values: dict[str, float]) -> dict[str, float | str]:
    return {short: form(values[name]) for name, (short, form) in _FIGURES.items() if name in values}


def _unit(flops: float) -> tuple[float, str]:
    """The unit in which `flops` has one to three digits before the point."""
    for scale, unit in ((1e18, "EFLOPs"), (1e15, "PFLOPs"), (1e12, "TFLOPs"), (1e9, "GFLOPs")):
        if flops >= scale:
            return scale, unit
    return 1e6, "MFLOPs"
