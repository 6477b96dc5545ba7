"""Where a run stands, from what it leaves in its folder: events, metric lines, beats, checkpoints.

Reads only, and may be asked while the run trains, from any machine that sees the folder. Whether somebody trains it now
is told by the experiment's lock, where this machine sees it; otherwise by signs of life that are no older than QUIET
seconds by this machine's clock, unless they are of processes of this machine that are gone. The pace, and with it the
time left, is that of the newest lines, with whatever evaluation and saving came between. Checkpoints are looked at by
manifests and sizes; `electra checkpoints --verify` hashes them.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import DataError, StoreError
from pipeline import story_words
from pipeline.run_folders import is_held
from pipeline.story import ENDINGS, SILENT, Entry, Story, tell
from training import run_folder
from training.heartbeat import Beat, read_beats
from training.metrics import all_lines, read_metrics
from training.suspects import is_here

if TYPE_CHECKING:
    from training.checkpoints.entries import Known

QUIET = 120.0  # seconds without a sign of life after which nobody is taken to train
_PACE_LINES = 10
_WORDS = {"started": "training", SILENT: "killed", "waiting": "waits"}
BUSY = ("training", "waits")  # states in which somebody is at work


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The newest checkpoint that is whole."""

    name: str
    step: int
    age: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One run now. What is not known is None."""

    run: str
    state: str  # training, waits, finished, stopped, hung, failed, killed
    step: int
    steps: int | None
    flops: float | None  # model FLOPs that count
    flops_planned: float | None
    tokens_per_second: float | None
    mfu: float | None
    data_wait: float | None  # share of the time
    loss: float | None
    heldout_loss: float | None
    seconds_left: float | None
    checkpoint: Saved | None
    restarts: list[str]  # why each attempt but the first was begun
    goodput: float | None
    quiet: float | None  # seconds since its last sign of life
    where: str | None  # `2 ranks on HOST; rank 0: step`, of a run that trains

    def record(self) -> dict[str, Any]:
        return asdict(self)


def status_of(
    run_dir: Path, *, checkpoints: bool = True, known: "Known | None" = None, now: float | None = None
) -> RunStatus:
    """The run in a folder. `checkpoints`: look at its store too; what is `known` of it is not read again."""
    now = time.time() if now is None else now
    spec, lines = run_folder.read_run_record(run_dir), all_lines(run_dir)
    events, beats = run_folder.events(run_dir), read_beats(run_dir)
    signs = [*(one["time"] for one in (*events, *lines[-1:])), *(beat.time for beat in beats.values())]
    quiet = max(0.0, now - max(signs)) if signs else None
    alive = is_held(run_dir) or (quiet is not None and quiet < QUIET and not _are_gone(beats))
    story, surviving = tell(events, lines, alive=alive), read_metrics(run_dir)
    state = _state(story, alive=alive, done=(run_dir / run_folder.DONE).exists())
    values: Mapping[str, Any] = surviving[-1]["values"] if surviving else {}
    step, busy = story.totals.step if story.totals else 0, state in BUSY
    if busy and 0 in beats:  # lines come every so many steps
        step = max(step, beats[0].step)
    return RunStatus(
        run=run_dir.name,
        state=state,
        step=step,
        steps=None if spec is None else spec.steps,
        flops=values.get("flops"),
        flops_planned=None if spec is None else spec.flops_by(spec.steps),
        tokens_per_second=values.get("tokens_per_second"),
        mfu=values.get("mfu"),
        data_wait=values.get("data_wait"),
        loss=values.get("train/loss"),
        heldout_loss=next((one["values"]["heldout/loss"] for one in surviving[::-1] if _heldout(one)), None),
        seconds_left=_seconds_left(surviving, step, spec.steps) if busy and spec is not None else None,
        checkpoint=_saved(run_dir, known, now) if checkpoints else None,
        restarts=_restarts(story.entries),
        goodput=story.totals.goodput if story.totals else None,
        quiet=quiet,
        where=_where(beats) if busy else None,
    )


def _are_gone(beats: Mapping[int, Beat]) -> bool:
    """Whether the processes that beat last are known to be no more; of other machines nothing is known."""
    last = beats.values()
    here = bool(last) and all(beat.host == socket.gethostname() for beat in last)
    return here and not any(is_here(beat.host, beat.pid, beat.started) for beat in last)


def _heldout(line: Mapping[str, Any]) -> bool:
    return "heldout/loss" in line["values"]


def _state(story: Story, *, alive: bool, done: bool) -> str:
    if done:
        return "finished"
    told = [entry.kind for entry in story.entries if entry.kind in (*ENDINGS, *_WORDS)]
    last = told[-1] if told else "started" if alive else SILENT
    return _WORDS.get(last, last)


def _seconds_left(lines: Sequence[Mapping[str, Any]], step: int, steps: int) -> float | None:
    """By the newest lines of the newest attempt; None before it has two."""
    same = [line for line in lines if line["attempt"] == lines[-1]["attempt"]][-_PACE_LINES:]
    if len(same) < 2 or same[-1]["time"] <= same[0]["time"]:
        return None
    pace = (same[-1]["step"] - same[0]["step"]) / (same[-1]["time"] - same[0]["time"])
    return float(max(0, steps - step) / pace)


def _restarts(entries: Sequence[Entry]) -> list[str]:
    """What went before each beginning but the first: how the attempt ended, by the first word that says so."""
    found: list[str] = []
    reason: str | None = None
    for entry in entries:
        if entry.kind in (*ENDINGS, SILENT):
            reason = reason or story_words.told(entry.event)
        elif entry.kind == "started" and reason is not None:
            found.append(reason)
            reason = None
    return found


def _saved(run_dir: Path, known: "Known | None", now: float) -> Saved | None:
    from training.checkpoints.entries import entries

    try:
        found = entries(run_folder.store_of(run_dir), known=known)
    except (StoreError, DataError):  # no answer now; the rest is worth telling
        return None
    whole = [entry for entry in found if entry.state == "valid"]
    if not whole or whole[-1].saved_at is None:
        return None
    return Saved(name=whole[-1].name, step=whole[-1].step, age=max(0.0, now - whole[-1].saved_at))


def _where(beats: Mapping[int, Beat]) -> str | None:
    """Which machines the ranks are on, and what the one that is furthest behind is at."""
    if not beats:
        return None
    slowest, hosts = (
        min(beats.values(), key=lambda beat: (beat.step, beat.rank)),
        {beat.host for beat in beats.values()},
    )
    ranks = story_words.plural(len(beats), "rank")
    return f"{ranks} on {', '.join(sorted(hosts))}; rank {slowest.rank} at step {slowest.step:,}: {slowest.phase}"
