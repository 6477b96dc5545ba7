"""The sweep as a stage: the runs of OUT/sweep that are not done, their scores where those decide, then the choice.

An experiment in an experiment's folder, held by the same command and sharing its Ray.
"""

from typing import Any

from data_prep.errors import DivergedError
from pipeline import gather, stages, sweep
from pipeline.folder import open_folder
from pipeline.place import Place, shown
from pipeline.sweep_config import LOSS
from pipeline.train_stage import heed_a_stop, train
from training import requests
from training.arms import ElectraTwoStageArm
from training.run_folder import RECORD, events


def run_sweep(place: Place) -> dict[str, Any]:
    """Sweep what is not swept, and say what was chosen; nothing without `sweep:`. The corpus must be there."""
    experiment, out = place.experiment, place.folder.path
    if experiment.sweep is None:
        return {}
    record = sweep.chosen(experiment, out)
    if record is None:
        diverged = _work(place)
        record = sweep.choose(experiment, out, diverged)
        place.worked = True
    _show(record, place)
    return record


def _work(place: Place) -> dict[str, str]:
    """Train and evaluate as any experiment; the arms and rates that diverged, and how."""
    swept = sweep.as_experiment(place.experiment, place.folder.path)
    out = place.folder.path / sweep.FOLDER
    place.console.say(f"sweep: {len(swept.arms)} arms and rates in {shown(out)}")
    with open_folder(out, swept) as folder:
        requests.clear(folder.runs)
        within = Place(
            experiment=swept,
            folder=folder,
            console=place.console,
            stack=place.stack,
            ranks=place.ranks,
            ray_running=place.ray_running,
        )
        try:
            diverged = _train(within)
            if place.experiment.sweep is not None and place.experiment.sweep.choose_by != LOSS:
                stages.timed("evaluate", _evaluate, within)
            heed_a_stop(within)
        finally:
            place.ray_running, place.worked = within.ray_running, place.worked or within.worked
    return diverged


def _train(place: Place) -> dict[str, str]:
    """Every arm and rate. One that diverges is out of the choice, and the others go on: a grid may be too wide."""
    diverged: dict[str, str] = {}
    while True:
        try:
            stages.timed("train", train, place)
            return diverged
        except DivergedError as error:
            label = _at_fault(place, str(error))
            if label is None:
                raise
            diverged[label] = str(error)
            place.console.warn(f"sweep: {error}; the rate is out of the choice")
            left = [arm for arm in place.experiment.arms if arm.label != label]
            if not left:
                return diverged
            place.experiment = place.experiment.model_copy(update={"arms": left})


def _at_fault(place: Place, reason: str) -> str | None:
    """The arm and rate whose run, or its first stage, failed for this reason; None where no run of those that are left
    says so."""
    arms = {arm.label: arm.label for arm in place.experiment.arms}
    arms |= {arm.first_stage().label: arm.label for arm in place.experiment.arms if isinstance(arm, ElectraTwoStageArm)}
    for folder in sorted(path.parent for path in place.folder.runs.glob(f"*/{RECORD}")):
        failed = [one for one in events(folder) if one["event"] == "failed"]
        if failed and str(failed[-1]["reason"]) in reason:
            return arms.get(str(gather.read_spec(folder)["arm"]))
    return None


def _evaluate(place: Place) -> dict[str, Any]:
    return stages.evaluate(place, tables=False)


def _show(record: dict[str, Any], place: Place) -> None:
    rows = [_row(arm, one, chosen["rate"]) for arm, chosen in record["arms"].items() for one in chosen["tries"]]
    place.console.table("Sweep", ["arm", "learning rate", f"{record['choose_by']} ({record['best']} is best)"], rows)
    for arm, chosen in record["arms"].items():
        if chosen["end_of_grid"] is not None:
            place.console.warn(
                f"sweep: {arm} did best at {chosen['rate']:g}, the {chosen['end_of_grid']} rate tried: its best may "
                "lie beyond"
            )


def _row(arm: str, one: dict[str, Any], best: float) -> list[object]:
    rate = f"{one['rate']:g}{' (chosen)' if one['rate'] == best else ''}"
    return [arm, rate, "diverged" if one["value"] is None else f"{one['value']:.4f}"]
