"""Which rows finished runs have read, and which of them the same ones in the same order.

Of one corpus (there may be several, of other tokenizers or layouts) the seed alone decides the order of rows. A run
reads it from one position on to another, less the ranges that rollbacks led it past; a second stage goes on where its
first one ended, and the two are read as one. Runs of one seed go different distances: they agree where one has read
what the other has, as far as the shorter one goes.

From the records of finished runs alone; says nothing of another experiment's run that a run began with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pipeline.gather import Contents, Run
from pipeline.wording import names

Ranges = list[tuple[int, int]]  # positions, from and to (without it), in the order they were read


@dataclass(slots=True)
class Alike:
    """Runs of a seed on one corpus that agree, and what the longest of them has read."""

    seed: int
    corpus: str  # its name
    runs: list[str]
    ranges: Ranges


def alike(contents: Contents) -> list[Alike]:
    """The finished runs by what they have read, by seed, those first that most agree with. Without runs whose record
    does not say it, which earlier versions left."""
    known = [(run, read) for run in contents.finished if (read := _read_by(run, contents)) is not None]
    # whoever read straight on comes first, the longest before those that have read its beginning
    known.sort(key=lambda one: (len(one[1]), one[1][0][0], -_rows(one[1])))
    groups: list[Alike] = []
    for run, read in known:
        stream = (run.seed, contents.corpus_of(run))
        group = next((one for one in groups if (one.seed, one.corpus) == stream and agree(one.ranges, read)), None)
        if group is None:
            group = Alike(*stream, [], read)
            groups.append(group)
        elif _rows(read) > _rows(group.ranges):  # what agrees with a short run need not agree with a longer one
            group.ranges = read
        group.runs.append(run.name)
    return sorted(groups, key=lambda one: (one.seed, one.corpus, -len(one.runs)))


def sentences(contents: Contents) -> list[str]:
    """What there is to say of runs that read one corpus in batches of one size."""
    groups = alike(contents)
    several = len({one.corpus for one in groups}) > 1
    if groups and not apart(groups):
        told = [
            "All runs of a seed that read one corpus read the same rows in the same order, as far as each goes."
            if several
            else "All runs of a seed read the same rows of one corpus in the same order, as far as each goes."
        ]
    else:
        told = [
            _of_seed(f"seed {seed}" + f" on {corpus or 'corpus'}" * several, list(own))
            for (seed, corpus), own in groupby(groups, lambda one: (one.seed, one.corpus))
        ]
    known = {name for one in groups for name in one.runs}
    if unknown := [run.name for run in contents.finished if run.name not in known]:
        told.append(f"Which rows {names(unknown)} read is not on record.")
    return told


def apart(groups: Sequence[Alike]) -> bool:
    """Whether runs of one seed and corpus disagree."""
    return len(groups) > len({(one.seed, one.corpus) for one in groups})


def _of_seed(seed: str, groups: Sequence[Alike]) -> str:
    if len(groups) == 1:
        return f"All runs of {seed} read the same rows in the same order, as far as each goes."
    return f"Not all runs of {seed} read the same rows in the same order: {'; '.join(map(_of_group, groups))}."


def _of_group(group: Alike) -> str:
    ranges = names([f"{start:,} to {stop:,}" for start, stop in group.ranges])
    return f"{names(group.runs)} read positions {ranges}{', as far as each goes' * (len(group.runs) > 1)}"


def agree(one: Ranges, other: Ranges) -> bool:
    """Whether the first rows of the one are the first rows of the other, as far as the shorter one goes."""
    rows = min(_rows(one), _rows(other))
    return _first(one, rows) == _first(other, rows)


def _first(ranges: Ranges, rows: int) -> Ranges:
    found: Ranges = []
    for start, stop in ranges:
        if rows <= 0:
            break
        found.append((start, min(stop, start + rows)))
        rows -= stop - start
    return found


def _rows(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _read_by(run: Run, contents: Contents) -> Ranges | None:
    """With its first stage's; None where a record does not say."""
    stages = [first for first in contents.first_stages if first.part_of == run.name] + [run]
    found: Ranges = []
    for stage in stages:
        if stage.done is None or "position" not in stage.done:
            return None
        found += _ranges(stage.done)
    return _joined(found)


def _ranges(done: dict[str, Any]) -> Ranges:
    """From the start to the end, less what was skipped."""
    found, at = [], int(done["start_position"])
    for start, stop in sorted(map(tuple, done["skipped"])):
        found.append((at, start))
        at = stop
    return [*found, (at, int(done["position"]))]


def _joined(ranges: Ranges) -> Ranges:
    """Without empty ranges, and those that follow on one another as one."""
    found: Ranges = []
    for start, stop in ranges:
        if start >= stop:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
