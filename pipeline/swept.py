"""What an experiment's sweep chose, from its record (`pipeline.sweep` writes it).

Plain facts for whoever tells of them; nothing here asks whether the record is still of this configuration, which
`electra experiment check` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_prep import storage
from data_prep.errors import DataError
from pipeline.gather import Contents
from pipeline.sweep import CHOSEN, FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A rate, and the mean of what decides over the runs at it; None where one of them diverged."""

    rate: float
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """An arm's sweep. `end_of_grid`: whether the chosen rate is the `lowest` or the `highest` that was tried."""

    arm: str
    rate: float
    end_of_grid: str | None
    tries: Sequence[Tried]
    flops_counted: float
    flops_spent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The whole record. `best`: whether the `lowest` or the `highest` value wins."""

    choose_by: str
    best: str
    budgets: Sequence[float]
    seeds: int
    arms: Sequence[Swept]


def choice(contents: Contents) -> Choice | None:
    """None where nothing was chosen. DataError where the record is broken."""
    path = contents.out / FOLDER / CHOSEN
    if not contents.config.get("sweep") or not path.is_file():
        return None
    try:
        return _choice(storage.read_json(path))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no record of a sweep ({error!r}); run `electra experiment run` again.") from None


def _tried(tried: dict[str, Any]) -> Tried:
    value = tried["value"]
    return Tried(rate=float(tried["rate"]), value=None if value is None else float(value))


def _choice(record: dict[str, Any]) -> Choice:
    arms = [
        Swept(
            arm=name,
            rate=float(one["rate"]),
            end_of_grid=one["end_of_grid"],
            tries=[_tried(tried) for tried in one["tries"]],
            flops_counted=float(one["flops_counted"]),
            flops_spent=float(one["flops_spent"]),
        )
        for name, one in record["arms"].items()
    ]
    return Choice(
        choose_by=str(record["choose_by"]),
        best=str(record["best"]),
        budgets=[float(budget) for budget in record["budgets"]],
        seeds=int(record["seeds"]),
        arms=arms,
    )
