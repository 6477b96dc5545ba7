"""The events of a run in words: one sentence each, the same in `electra events` and while training goes on.

An event that is not known here is told with its fields, so that nothing is hidden. Reads no files.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.console import duration
from pipeline.place import shown
from pipeline.story import SILENT, Cost, Entry, Record, Totals


def sentence(entry: Entry) -> str:
    """What happened, without time and cost."""
    if entry.kind == "started":
        return f"attempt {entry.attempt} {started(entry.event)}"
    if entry.kind == "saved":
        return _saved(entry.events)
    return told(entry.event)


def told(event: Record) -> str:
    """Any single event in words."""
    words = _WORDS.get(event["event"])
    if words is not None:
        return words(event)
    fields = ", ".join(f"{name} {value}" for name, value in event.items() if name not in ("event", "time"))
    return f"{event['event']}: {fields}" if fields else str(event["event"])


def started(event: Record) -> str:
    """`resumed at step 40 from step-00000040 on 2 × CPU (x86_64); passed over: …`."""
    where = f"resumed at step {event['step']:,}" if event.get("from") or event["step"] else "began at step 0"
    where = branched(event["trunk"]) if "trunk" in event else where
    source = f" from {event['from']}" if event.get("from") else ""
    on = f" on {event['world_size']} × {event['device']}" if "device" in event else ""
    return f"{where}{source}{on}{_preflight(event.get('preflight'))}{_passed_over(event)}"


def branched(trunk: Record) -> str:
    """`branched off electra-4.00e+11-s0 at step 40`, of a beginning."""
    if not trunk["step"]:
        return f"began at step 0, since {trunk['run']} keeps no checkpoint up to step {trunk['planned']:,}"
    return f"branched off {trunk['run']} at step {trunk['step']:,}"


def _preflight(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    parts = [f"checkpoints are written at {found['mb_per_second']:.0f} MB/s"] if found.get("mb_per_second") else []
    if found.get("free_bytes") is not None and found.get("need_bytes") is not None:
        parts.append(f"{size(found['free_bytes'])} are free and {size(found['need_bytes'])} will be needed")
    return f"; {', '.join(parts)}" if parts else ""


def _passed_over(event: Record) -> str:
    passed = [reason.rstrip(".") for reason in event.get("passed_over", [])]
    return f"; passed over: {'; '.join(passed)}" if passed else ""


def _saved(events: Sequence[Record]) -> str:
    last, count = events[-1], len(events)
    first = "" if count == 1 else f"{count} times, steps {events[0]['step']:,} to "
    parts = [f"saved {first or 'step '}{last['step']:,}"]
    if "bytes" in last:
        parts.append(size(last["bytes"]) + (" each" if count > 1 else ""))
    if "copy_seconds" in last:
        held, written = (sum(event[name] for event in events) for name in ("copy_seconds", "write_seconds"))
        parts.append(f"training waited {_brief(held)}, writing took {_brief(written)}")
    if pruned := [name for event in events for name in event.get("pruned", [])]:
        parts.append(f"{len(pruned)} older removed by the rules of retention")
    return ", ".join(parts)


def _brief(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.2g} s"


def _save_failed(event: Record) -> str:
    row = f", {event['in_a_row']} in a row" if event.get("in_a_row", 1) > 1 else ""
    return f"saving step {event['step']:,} failed{row}: {event['reason']}"


def _rollback(event: Record) -> str:
    first, last = event["from_position"], event["to_position"]
    return (
        f"rolled back from step {event['step']:,} to step {event['to_step']:,} ({event['reason']}); the "
        f"{last - first:,} rows at positions {first:,} to {last:,} are skipped"
    )


def _hung(event: Record) -> str:
    waited = f" after {duration(event['seconds'])}" if event.get("seconds") else ""
    during = f" ({event['phase']})" if event.get("phase") else ""
    ranks = [_hung_rank(rank) for rank in event["ranks"]]
    more = [f"and {plural(event['left_out'], 'rank')} more"] if event.get("left_out") else []
    return f"hung at step {event['step']:,}{during}{waited}: {'; '.join([*ranks, *more]) or 'nobody can be named'}"


def _hung_rank(rank: dict[str, Any]) -> str:
    where = f" ({rank['host']}, pid {rank['pid']})" if rank["host"] is not None else ""
    last = f", last seen at {rank['stack'][-1]}" if rank["stack"] else ""
    return f"rank {rank['rank']}{where}: {rank['why']}{last}"


def _weights(event: Record) -> str:
    folders = [
        shown(Path(given["folder"])) + ("" if given["vocabulary"] else " (its vocabulary is not known beyond its size)")
        for given in event["from"]
    ]
    lacked = f"; random: {', '.join(event['lacked'])}" if event["lacked"] else ""
    return f"its {event['network']} began with {' and '.join(folders) or 'no weights of its own'}{lacked}"


def _placement(event: Record) -> str:
    changes = [f"{key} {_short(before)} → {_short(now)}" for key, (before, now) in event["changed"].items()]
    return f"placement changed: {', '.join(changes)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


_WORDS: dict[str, Callable[[Record], str]] = {
    "started": started,
    "saved": lambda event: _saved([event]),
    "save_failed": _save_failed,
    "rollback": _rollback,
    "hung": _hung,
    "weights": _weights,
    "placement": _placement,
    "failed": lambda event: f"failed at step {event.get('step') or 0:,}: {event['reason']}",
    "waiting": lambda event: f"waits at step {event['step']:,}: {event['reason']}",
    "stopped": lambda event: f"stopped at step {event['step']:,} ({event['reason']}), saved",
    "fault": lambda event: f"fault injected at step {event['step']:,}, rank {event['rank']}: {event['kind']}",
    "degenerate": lambda event: f"at step {event['step']:,} {event['reason']}",
    "recovered": lambda event: f"at step {event['step']:,} the held-out figures are no longer degenerate",
    "finished": lambda event: f"finished at step {event['step']:,}",
    SILENT: lambda event: f"ended without a word at step {event['step']:,} or later (killed?)",
}


def cost(lost: Cost) -> str:
    """`12 steps, 3.40e+12 FLOPs, 41 s`."""
    flops = [] if lost.flops is None else [f"{lost.flops:.2e} FLOPs"]
    return ", ".join([plural(lost.steps, "step"), *flops, duration(lost.seconds)])


def totals(found: Totals) -> str:
    """The last line of a story."""
    parts = [plural(found.attempts, "attempt"), f"{plural(found.steps_lost, 'step')} lost"]
    if found.rollbacks:
        parts.append(
            f"{plural(found.rollbacks, 'rollback')} in all attempts, {plural(found.rows_skipped, 'row')} left out of "
            "the trajectory that counts"
        )
    parts.append(f"{found.flops_spent:.3e} FLOPs spent, of which {found.flops_counted:.3e} count")
    return f"in all: {'; '.join([*parts, goodput(found.useful_seconds, found.wall_seconds)])}"


def goodput(useful: float, wall: float) -> str:
    """Useful step time ÷ wall time."""
    if wall <= 0:
        return "goodput not known yet"
    return f"goodput {useful / wall:.1%} ({duration(useful)} of useful steps in {duration(wall)})"


def plural(count: int, noun: str) -> str:
    """`1 step`, `12 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def size(count: float) -> str:
    """`12.1 MB`, `3.4 GB`, `512 bytes`."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"
