"""How much an arm can learn from a row: positions with a gradient, bits at most, and what was measured.

A masked language model learns from the positions that are masked, at most log2 V bits from each; a detector of replaced
tokens from every position, at most one bit from each. What the labels of a run really held is their entropy at the rate
of replaced tokens that its held-out evaluations measured, and of that, how much the detector explained. The network
told of is the one that is fine-tuned; what a generator learns beside it is not counted, nor the bit a pair of BERT's
next-sentence prediction. From the records of finished runs alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from data_prep.manifest import Manifest
from pipeline.gather import Contents, Run
from training.arms import ArmConfig
from training.run import mean_counts

_ON_MASKED = ("mlm", "bert", "roberta", "replace_mlm", "electra_15")  # others learn from every token
_OF_TWO = ("electra", "electra_15", "electra_adversarial", "electra_two_stage")  # original or replaced; others: of V


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Of an arm at a budget, or of a recipe on full rows. Bits are of a row; `measured` and `explained` None where
    there are no labels of two kinds, or nothing was measured."""

    arm: str
    budget: float | None
    tokens: float  # of a row, on average
    positions: float  # of them with a gradient
    most: float  # bits
    replaced: float | None  # share of the judged positions
    measured: float | None  # bits: entropy of the labels
    explained: float | None  # bits: what the detector knew of it


def paper() -> list[Signal]:
    """The recipe of the paper on a full row: 512 tokens, 15 % masked, a vocabulary of 30,522; replaced tokens at 6 %,
    as its generator leaves them."""
    tokens, masked = 512, int(0.15 * 512)
    words = masked * math.log2(30_522)
    labels = tokens * entropy(0.06)
    none: dict[str, Any] = {"budget": None, "tokens": tokens, "explained": None}
    return [
        Signal(arm="MLM, 15 %", positions=masked, most=words, replaced=None, measured=None, **none),
        Signal(arm="RTD, 6 % replaced", positions=tokens, most=tokens, replaced=0.06, measured=labels, **none),
    ]


def entropy(rate: float) -> float:
    """Bits of a label that is 1 at `rate`."""
    return 0.0 if rate in (0.0, 1.0) else -rate * math.log2(rate) - (1 - rate) * math.log2(1 - rate)


def signals(contents: Contents) -> list[Signal]:
    """Arms at their budgets, in the order of runs; none without a corpus to count tokens in. Runs of several seeds are
    averaged."""
    cells: dict[tuple[str, float], list[Run]] = {}
    for run in contents.finished:
        cells.setdefault((run.arm, run.budget), []).append(run)
    return [_signal(runs, read) for runs in cells.values() if (read := contents.manifest_of(runs[0])) is not None]


def _signal(runs: Sequence[Run], corpus: Manifest) -> Signal:
    first = runs[0]
    tokens, positions = _a_row(first, corpus)
    two = first.objective in _OF_TWO
    replaced = _mean(runs, "heldout/replaced_rate") if two else None
    label = _mean(runs, "heldout/rtd_label_entropy") if two else None  # nats
    informed = _mean(runs, "heldout/rtd_information")
    measured = None if label is None else positions * label / math.log(2)
    return Signal(
        arm=first.arm,
        budget=first.budget,
        tokens=tokens,
        positions=positions,
        most=positions * (1.0 if two else math.log2(corpus.vocab_size)),
        replaced=None if replaced is None else replaced * tokens / positions,
        measured=measured,
        explained=None if measured is None or informed is None else measured * informed,
    )


def _a_row(run: Run, corpus: Manifest) -> tuple[float, float]:
    """Tokens of a row on average, and how many of them the main network learns from."""
    arm: ArmConfig = TypeAdapter(ArmConfig).validate_python(run.identity["arm"])
    counts = mean_counts(corpus, arm)
    return counts.tokens, counts.masked if run.objective in _ON_MASKED else counts.tokens


def _mean(runs: Sequence[Run], name: str) -> float | None:
    """At the last step; None where a run did not measure it."""
    values = [run.done.get("heldout", {}).get(name) for run in runs if run.done]
    return sum(values) / len(values) if values and None not in values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Along:
    """The held-out evaluations of a run that detects: share of the judged positions that were replaced, and the bits of
    a label there, from the first evaluation to the last."""

    run: str
    arm: str
    flops: list[float]
    rates: list[float]
    bits: list[float]


def along(contents: Contents) -> list[Along]:
    """Of every finished run that has any."""
    detecting = [(run, contents.manifest_of(run)) for run in contents.finished if run.objective in _OF_TWO]
    found = [_along(run, corpus) for run, corpus in detecting if corpus is not None]
    return [one for one in found if one.flops]


def _along(run: Run, corpus: Manifest) -> Along:
    tokens, positions = _a_row(run, corpus)
    names = ("heldout/replaced_rate", "heldout/rtd_label_entropy")
    there = [values for line in run.lines if all(name in (values := line["values"]) for name in names)]
    return Along(
        run=run.name,
        arm=run.arm,
        flops=[values["flops"] for values in there],
        rates=[values[names[0]] * tokens / positions for values in there],
        bits=[values[names[1]] / math.log(2) for values in there],
    )
