"""What happened to a run, from its events and metric lines: attempts, how each ended, and what that cost.

Pure functions over plain records, in the order of their files: clocks of machines are not compared. An attempt is what
one `started` event begins. It ends with a word (`finished`, `stopped`, `hung`, `failed`), or without one, as a killed
process does: then the next attempt, or the absence of whoever trained, says so. What an ending cost is known when the
next attempt has begun:

* steps: from the last one there is a record of back to the one resumed at: at least so many;
* FLOPs: by how much the ledger of what was spent moved away from the ledger of what counts (which contains an estimate
  of what an attempt did after its last line, where its heartbeats tell);
* seconds: from the moment that the state resumed from was reached to the new beginning, waiting included, less what
  earlier endings in between have been charged already.

Goodput is the time inside the steps that survived ÷ the time from the first beginning to the last sign of life.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]

ENDINGS = ("finished", "stopped", "hung", "failed")
SILENT = "silent"  # the ending of an attempt that left no word


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What was lost. `flops`: model FLOPs spent and not counted; None where no later line tells yet, and of an attempt
    that left no line: what it spent is in the figure of the ending before it."""

    steps: int
    flops: float | None
    seconds: float


@dataclass(slots=True, kw_only=True)
class Entry:
    """One thing to tell: its events (several of one kind in a row where they are condensed), and what it cost."""

    attempt: int  # from 1
    time: float
    kind: str
    events: list[Record]
    cost: Cost | None = None

    @property
    def event(self) -> Record:
        """The last of them."""
        return self.events[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All attempts together. `rollbacks` are all there were, `rows_skipped` what those of the surviving trajectory have
    left out of it. `steps_lost`: at least so many. FLOPs are the ledgers', with what the run began with; of a branch,
    without what its trunk has done."""

    attempts: int
    rollbacks: int
    rows_skipped: int
    step: int
    steps_lost: int
    flops_spent: float
    flops_counted: float
    useful_seconds: float
    wall_seconds: float

    @property
    def goodput(self) -> float | None:
        """None before any time has passed."""
        return self.useful_seconds / self.wall_seconds if self.wall_seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Entries in order, and the totals; None before the first attempt."""

    entries: list[Entry]
    totals: Totals | None


def tell(events: Iterable[Record], lines: Iterable[Record], *, alive: bool) -> Story:
    """The story of a run by all its events and all its metric lines, superseded ones too. `alive`: whether somebody is
    training it now, so that an attempt without an ending is not over."""
    attempts = _attempts(list(events), list(lines))
    trace = _Trace()
    for number, attempt in enumerate(attempts, start=1):
        for record in attempt:
            trace.add(number, record)
        if number < len(attempts) or not alive:
            trace.end(number)
    return Story(entries=trace.entries, totals=trace.totals(len(attempts)) if attempts else None)


def _attempts(events: list[Record], lines: list[Record]) -> list[list[Record]]:
    """The records of each attempt. What stands before the first `started` (a group of workers that did not come up) is
    of the first attempt."""
    groups: list[list[Record]] = []
    firsts: list[int] = []
    early: list[Record] = []
    for event in events:
        if event["event"] == "started":
            firsts.append(event.get("attempt", len(groups)))
            groups.append([event] if groups else [*early, event])
        else:
            (groups[-1] if groups else early).append(event)
    # A segment of lines belongs to the last attempt that had begun by its number: a rollback begins one as well, and an
    # attempt that was killed before its first line leaves its number to the next
    segments = {line["attempt"] for line in lines}
    owners = {one: [index for index, first in enumerate(firsts) if first <= one] for one in segments}
    written: list[list[Record]] = [[] for _ in groups]
    for line in lines:
        if owners[line["attempt"]]:
            written[owners[line["attempt"]][-1]].append(line)
    return [_in_order(*one) for one in zip(groups, written, firsts, strict=True)]


def _in_order(events: list[Record], lines: list[Record], segment: int) -> list[Record]:
    """The events and the lines of an attempt, whose first line is of a segment, each in their own order: a line comes
    before what is told of its step or of a later one, and before the end of its segment, a rollback or an ending."""
    merged: list[Record] = []
    waiting, begun = deque(lines), False
    for event in events:
        closes = event["event"] in (*ENDINGS, "rollback")
        upto = math.inf if closes else event.get("step") or 0
        while begun and waiting and waiting[0]["attempt"] <= segment and waiting[0]["step"] <= upto:
            merged.append(waiting.popleft())
        merged.append(event)
        begun |= event["event"] == "started"
        segment += event["event"] == "rollback"
    return [*merged, *waiting]


@dataclass(slots=True)
class _Trace:
    """The run as it is followed from record to record."""

    entries: list[Entry] = field(default_factory=list)
    surviving: dict[int, Record] = field(default_factory=dict)  # metric lines of the trajectory, by step
    reached: dict[int, float] = field(default_factory=dict)  # when the trajectory was last known to be at a step
    at: int = 0  # the newest step of the trajectory that there is a record of
    began: float | None = None  # the first attempt
    last: float = 0.0
    spent: float = 0.0
    gap: float | None = None  # FLOPs spent less counted, at the last line
    shared: float = 0.0  # FLOPs that count and that a trunk has spent
    rollbacks: int = 0
    skipped: dict[int, int] = field(default_factory=dict)  # rows that the trajectory left out, by the step it did so at
    steps_lost: int = 0
    charged: list[tuple[float, float]] = field(default_factory=list)  # (when, seconds) of what was lost
    ending: Entry | None = None  # of the attempt before, until the next one begins
    wrote: bool = False  # whether the newest attempt has left a line
    unpriced: Entry | None = None  # the ending of the last attempt that did, until another line tells its FLOPs

    def add(self, number: int, record: Record) -> None:
        self.last = max(self.last, record["time"])
        if "event" not in record:
            self._line(record)
            return
        kind = record["event"]
        if kind == "started":
            self._started(record)
        entry = self._entry(number, record)
        if kind == "rollback":
            self._rollback(entry)
        elif kind != "started":
            self.at = max(self.at, record.get("step") or 0)
        if kind in ENDINGS and self.began is not None:
            self.ending = entry
        if kind == "saved":
            self.reached.setdefault(record["step"], record["time"])

    def end(self, number: int) -> None:
        """The attempt is over; if it did not say so, this does."""
        if self.ending is None:
            event = {"event": SILENT, "step": self.at, "time": self.last}
            self.ending = self._entry(number, event)

    def _entry(self, number: int, event: Record) -> Entry:
        before = self.entries[-1] if self.entries else None
        if before is not None and before.kind == event["event"] == "saved" and before.attempt == number:
            before.events.append(event)
            return before
        entry = Entry(attempt=number, time=event["time"], kind=event["event"], events=[event])
        self.entries.append(entry)
        return entry

    def _line(self, line: Record) -> None:
        values = line["values"]
        gap = values["flops_spent"] - values["flops"]
        if self.unpriced is not None and self.unpriced.cost is not None and self.gap is not None:
            before = self.unpriced.cost
            self.unpriced.cost = Cost(steps=before.steps, flops=max(0.0, gap - self.gap), seconds=before.seconds)
        self.unpriced, self.gap, self.wrote = None, gap, True
        self.spent = max(self.spent, values["flops_spent"])
        self.surviving[line["step"]] = line
        self.reached[line["step"]] = line["time"]
        self.at = max(self.at, line["step"])

    def _started(self, event: Record) -> None:
        step, when = event["step"], event["time"]
        if self.began is None:
            self.began = when
        if "trunk" in event:
            self.shared = event["trunk"]["flops"]
        if self.ending is not None:
            self.ending.cost = self._lose(step, when, flops=None)
            self.unpriced = self.ending if self.wrote else self.unpriced
        self._back_to(step, when)
        self.ending, self.wrote = None, False

    def _rollback(self, entry: Entry) -> None:
        event = entry.event
        self.at = max(self.at, event["step"])
        entry.cost = self._lose(event["to_step"], event["time"], flops=event["flops"])
        self.gap = None if self.gap is None else self.gap + event["flops"]
        self._back_to(event["to_step"], event["time"])
        self.rollbacks += 1
        self.skipped[event["to_step"]] = event["to_position"] - event["from_position"]

    def _lose(self, step: int, when: float, *, flops: float | None) -> Cost:
        assert self.began is not None
        made = self.reached.get(step, self.began)
        already = sum(seconds for moment, seconds in self.charged if moment > made)
        cost = Cost(steps=max(0, self.at - step), flops=flops, seconds=max(0.0, when - made - already))
        self.charged.append((when, cost.seconds))
        self.steps_lost += cost.steps
        return cost

    def _back_to(self, step: int, when: float) -> None:
        self.at = step
        self.surviving = {at: line for at, line in self.surviving.items() if at <= step}
        self.reached = {at: moment for at, moment in self.reached.items() if at < step} | {step: when}
        self.skipped = {at: rows for at, rows in self.skipped.items() if at <= step}

    def totals(self, attempts: int) -> Totals:
        values = self.surviving[max(self.surviving)]["values"] if self.surviving else {}
        return Totals(
            attempts=attempts,
            rollbacks=self.rollbacks,
            rows_skipped=sum(self.skipped.values()),
            step=self.at,
            steps_lost=self.steps_lost,
            flops_spent=self.spent,
            flops_counted=max(0.0, values.get("flops", 0.0) - self.shared),
            useful_seconds=values.get("step_seconds", 0.0),
            wall_seconds=self.last - (self.began or 0.0),
        )
