"""How far seeds carry a cell's score, as replicates to be added to those of its examples.

What a few seeds say of their spread is little: drawing them anew with replacement, as one draws examples, gives
intervals that are too narrow by a factor of √((n − 1)/n) and know nothing of how badly the spread itself is known
(Hesterberg 2015, "What Teachers Should Know About the Bootstrap"). So the spread is pooled over the cells of an arm,
whose seeds are taken to vary alike whatever the budget, and the replicates follow Student's t with the degrees of
freedom that all of them together leave: of one cell alone the interval is the one of the textbook. A seed's deviations
on all tasks go together, because a bad start may harm them all.

Seeds also stand apart because each happens to be right on other examples. Drawing the examples anew moves the mean by
that much already, and adding it once more would make intervals too wide (Owen 2007, "The pigeonhole bootstrap": the
interaction of two things that are both drawn is counted too often). So that part, as the replicates of the examples
measure it, is taken out of the spread; where it is all of the spread, seeds add nothing.

Where no cell of an arm has two pre-training seeds, fine-tuning seeds are treated likewise, task by task; nothing is
then said of pre-training.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from data_prep import keyed
from pipeline.resampling import Floats

Cell = TypeVar("Cell")


@dataclass(frozen=True, slots=True)
class Scores:
    """A cell's scores `[S, T]` by pre-training seed and task, means over fine-tunings; and every fine-tuning's, by
    task, with its deviation from the mean of its seed and task. `…of_examples`: what the sum of squares of these
    deviations owes to the examples."""

    tasks: list[str]
    by_seed_ST: Floats
    by_seed_of_examples_T: Floats
    deviations: dict[str, Floats]  # of fine-tunings `[S × F]`
    deviations_of_examples: dict[str, float]
    finetunings: dict[str, int]  # S × F
    freedom: dict[str, int]  # S × (F − 1)


def noise(
    cells: Mapping[Cell, Scores], pool: Callable[[Cell], Hashable], replicates: int, seed: int
) -> dict[Cell, Floats]:
    """Replicates `[B, T]` of what seeds add to each cell's mean; zeros where nothing was repeated."""
    pools: dict[Hashable, list[Cell]] = defaultdict(list)
    for name, scores in cells.items():
        pools[(pool(name), *scores.tasks)].append(name)
    found: dict[Cell, Floats] = {}
    for key, members in pools.items():
        own = [cells[name] for name in sorted(members, key=str)]
        drawn = _pooled(own, str(key), replicates, seed)
        found |= {name: drawn(str(name), cells[name]) for name in members}
    return found


def _pooled(cells: Sequence[Scores], key: str, replicates: int, seed: int) -> Callable[[str, Scores], Floats]:
    """What draws the replicates of a cell of this pool."""
    centred = [cell.by_seed_ST - cell.by_seed_ST.mean(axis=0) for cell in cells]
    freedom = sum(len(cell.by_seed_ST) - 1 for cell in cells)
    if freedom:
        of_examples_T = np.sum([cell.by_seed_of_examples_T for cell in cells], axis=0)
        spread_TT = _root(np.concatenate(centred), of_examples_T) / np.sqrt(freedom)
        stretch_B = _stretch(freedom, replicates, int(keyed.key("seeds", seed, key)))

        def of_pretraining(name: str, cell: Scores) -> Floats:
            generator = np.random.default_rng(int(keyed.key("seeds", seed, key, name)))
            normal_BT = generator.standard_normal((replicates, len(cell.tasks)))
            moved: Floats = normal_BT @ spread_TT / np.sqrt(len(cell.by_seed_ST)) * stretch_B[:, None]
            return moved

        return of_pretraining

    def of_finetuning(name: str, cell: Scores) -> Floats:
        columns = [_of_task(cells, cell, task, (key, name), replicates, seed) for task in cell.tasks]
        return np.stack(columns, axis=1)

    return of_finetuning


def _of_task(
    cells: Sequence[Scores], cell: Scores, task: str, names: tuple[str, str], replicates: int, seed: int
) -> Floats:
    freedom = sum(one.freedom[task] for one in cells)
    if not freedom:
        return np.zeros(replicates)
    of_examples = np.array([sum(one.deviations_of_examples[task] for one in cells)])
    deviations_U1 = np.concatenate([one.deviations[task] for one in cells])[:, None]
    spread = float(_root(deviations_U1, of_examples)[0, 0]) / np.sqrt(freedom)
    stretch_B = _stretch(freedom, replicates, int(keyed.key("fine-tunings", seed, names[0], task)))
    generator = np.random.default_rng(int(keyed.key("fine-tunings", seed, *names, task)))
    moved: Floats = generator.standard_normal(replicates) * stretch_B * spread / np.sqrt(cell.finetunings[task])
    return moved


def _root(deviations_UT: Floats, of_examples_T: Floats) -> Floats:
    """The symmetric square root of the deviations' squares and products `[T, T]` without what each task's owe to the
    examples, which are drawn task by task. Directions in which nothing is left, or rounding alone, have no spread."""
    values_T, vectors_TT = np.linalg.eigh(deviations_UT.T @ deviations_UT - np.diag(of_examples_T))
    left_T = np.where(values_T > 1e-12 * values_T.max(), values_T, 0.0)
    root_TT: Floats = (vectors_TT * np.sqrt(left_T)) @ vectors_TT.T
    return root_TT


def _stretch(freedom: int, replicates: int, key: int) -> Floats:
    """What makes a normal deviate one of Student's t: the same for all cells whose spread was estimated together."""
    generator = np.random.default_rng(key)
    stretch: Floats = np.sqrt(freedom / generator.chisquare(freedom, size=replicates))
    return stretch
