"""What `electra status` says: a line for each experiment, a table of its runs, or all that is known of one run.

Columns in which nothing is known are left out.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.console import Console, duration
from pipeline.place import shown
from pipeline.run_status import BUSY, RunStatus
from pipeline.story_words import plural

if TYPE_CHECKING:
    from pipeline.status import Look, Standing

_UNKNOWN = "–"
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_COLUMNS = (
    "run", "state", "step", "FLOPs", "tokens/s", "MFU", "waits for data", "loss", "held out", "left", "checkpoint",
    "restarts", "goodput",
)  # fmt: skip
_PLACE_COLUMNS = ("folder", "state", "runs finished", "at", "step", "left", "last sign")


def clear(console: Console) -> None:
    """An empty screen, where there is one."""
    if console.interactive:
        console.stream.write(_CLEAR)


def tell(look: "Look", console: Console, *, detailed: bool) -> None:
    """`detailed`: the runs of each experiment, which a person has named."""
    if detailed:
        for one in look.standings:
            _tell_runs(one, console)
    elif look.standings:
        _table("experiments", _PLACE_COLUMNS, [_place_row(one) for one in look.standings], console)
    elif look.cluster is None:
        console.say("no experiment in runs/; name a folder, or begin one: electra quickstart")
    for one in look.standings:
        for sentence in one.unreadable:
            console.warn(sentence)
    if look.cluster is not None:
        _tell_cluster(look.cluster, console)


def _place_row(one: "Standing") -> list[str]:
    rest = [run for run in one.runs if run.state != "finished"]
    now = next((run for run in rest if run.state in BUSY), rest[-1] if rest else None)
    quiet = min((run.quiet for run in one.runs if run.quiet is not None), default=None)
    return [
        shown(one.out.absolute()),
        _place_state(one, now),
        f"{one.finished} of {_UNKNOWN if one.planned is None else one.planned}",
        _UNKNOWN if now is None else now.run,
        _UNKNOWN if now is None else _steps(now),
        _UNKNOWN if one.seconds_left is None else duration(one.seconds_left),
        _UNKNOWN if quiet is None else f"{duration(quiet)} ago",
    ]


def _place_state(one: "Standing", now: RunStatus | None) -> str:
    """That of the run which is trained, or which training has left."""
    if now is not None and (now.state in BUSY or not one.held):
        return now.state
    if one.held:
        return "at work"
    if not one.runs:
        return "nothing trained"
    return "finished" if one.planned is None or one.finished >= one.planned else "unfinished"


def _tell_runs(one: "Standing", console: Console) -> None:
    place = shown(one.out.absolute())
    if not one.runs:
        console.say(f"{place}: no run has begun")
        return
    rows = [_row(run) for run in one.runs]
    if one.planned is None and len(rows) == 1:
        _list(shown(one.out.absolute() / "runs" / one.runs[0].run), _COLUMNS[1:], rows[0][1:], console)
    else:
        _table(f"{place}: {_summary(one)}", _COLUMNS, rows, console)
    for run in one.runs:
        for number, reason in enumerate(run.restarts, start=1):
            console.say(f"  {run.run}: restart {number}: {reason}")
        if run.where is not None:
            console.say(f"  {run.run}: {run.where}; last sign of life {duration(run.quiet or 0.0)} ago")


def _summary(one: "Standing") -> str:
    """`12 of 18 runs begun, 11 finished; 2 h 05 min of training left at the newest pace`."""
    begun = plural(len(one.runs), "run") if one.planned is None else f"{len(one.runs)} of {plural(one.planned, 'run')}"
    left = "" if one.seconds_left is None else f"; {duration(one.seconds_left)} of training left at the newest pace"
    return f"{begun} begun, {one.finished} finished{left}"


def _row(run: RunStatus) -> list[str]:
    return [
        run.run,
        run.state,
        _steps(run),
        _UNKNOWN
        if run.flops is None
        else f"{run.flops:.2e}" + (f"/{run.flops_planned:.2e}" if run.flops_planned else ""),
        _number(run.tokens_per_second, ",.0f"),
        _number(run.mfu, ".1%"),
        _number(run.data_wait, ".1%"),
        _number(run.loss, ".4f"),
        _number(run.heldout_loss, ".4f"),
        _UNKNOWN if run.seconds_left is None else duration(run.seconds_left),
        _UNKNOWN if run.checkpoint is None else f"step {run.checkpoint.step:,}, {duration(run.checkpoint.age)} ago",
        str(len(run.restarts)),
        _number(run.goodput, ".1%"),
    ]


def _steps(run: RunStatus) -> str:
    return f"{run.step:,}" if run.steps is None else f"{run.step:,}/{run.steps:,}"


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def _tell_cluster(found: dict[str, Any], console: Console) -> None:
    if "error" in found:
        console.warn(found["error"])
        return
    nodes = [
        [node["address"], "head" if node["head"] else "worker", f"{node['cpus']:g}", f"{node['gpus']:g}"]
        for node in found["nodes"]
    ]
    console.table(f"nodes of {found['address']}", ["address", "is", "CPUs", "GPUs"], nodes)
    jobs = [
        [job["id"], job["status"].lower(), job["metadata"].get("out", _UNKNOWN), _clock(job["started"])]
        for job in found["jobs"]
    ]
    if jobs:
        console.table("jobs", ["job", "state", "folder", "begun"], jobs)


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) if moment else _UNKNOWN


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    kept = [at for at in range(len(columns)) if any(row[at] != _UNKNOWN for row in rows)]
    console.table(title, [columns[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _list(title: str, names: Sequence[str], values: Sequence[str], console: Console) -> None:
    known = [(name, value) for name, value in zip(names, values, strict=True) if value != _UNKNOWN]
    console.say(title)
    for name, value in known:
        console.say(f"  {name.ljust(max(len(name) for name, _ in known))}  {value}")
