"""Masks: exact counts, never on specials or padding, keyed by row, with the frequencies of the papers."""

import numpy as np
import pytest
from scipy.stats import chisquare

from data_prep.rows import structure
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB, make_rows
from training.masking import RowKeys, mask_counts, plan_masks, sampling_uniforms

SLOTS = 5


def plan(rows: np.ndarray, epoch: int = 0, **changes: object):  # type: ignore[no-untyped-def]
    index = np.arange(len(rows))
    options = {"seed": 0, "mask_prob": 0.15, "slots": SLOTS, "mask_id": SPECIAL.mask, "mask_rate": 0.85} | changes
    counter = options.pop("counter", RowKeys(0, np.full_like(index, epoch), index).counter())
    return plan_masks(rows, structure(rows, SPECIAL), counter, **options)  # type: ignore[arg-type]


def test_counts_follow_the_reference() -> None:
    """k = max(1, min(N, round(p n))), halves to even: .15 × 10 = 1.5 → 2, .15 × 30 = 4.5 → 4, .25 × 10 = 2.5 → 2."""
    lengths = np.array([0, 2, 10, 30, 128, 512])
    assert mask_counts(lengths, 0.15, 19).tolist() == [0, 1, 2, 4, 19, 19]
    assert mask_counts(np.array([10]), 0.25, 19).tolist() == [2]


def test_masked_positions_are_real_distinct_and_as_many_as_counted() -> None:
    rows = make_rows(500, seed=4)
    shape = structure(rows, SPECIAL)
    found = plan(rows)
    candidates = shape.real & ~shape.special
    for row in range(len(rows)):
        used = found.positions[row][found.weights[row] > 0]
        n = int(shape.lengths[row])
        assert len(used) == min(max(1, min(SLOTS, round(0.15 * n))), candidates[row].sum())
        assert len(set(used.tolist())) == len(used)
        assert candidates[row, used].all()
        assert (found.labels[row][: len(used)] == rows[row, used]).all()
        untouched = np.setdiff1d(np.arange(SEQ_LEN), used)
        assert (found.inputs[row, untouched] == rows[row, untouched]).all()


def test_a_row_of_padding_masks_nothing() -> None:
    rows = np.full((3, SEQ_LEN), SPECIAL.pad)
    found = plan(rows)
    assert found.count == 0 and (found.inputs == rows).all()


def test_a_mask_depends_on_its_row_alone() -> None:
    """The same rows in another batch, another order: the same masks. Another epoch: others."""
    rows = make_rows(64, seed=5)
    keys = RowKeys(7, np.zeros(64, dtype=np.int64), np.arange(64))
    whole = plan(rows, counter=keys.counter())
    picked = np.array([40, 3, 17])
    part = plan(rows[picked], counter=keys.counter()[picked])
    assert (part.inputs == whole.inputs[picked]).all() and (part.positions == whole.positions[picked]).all()
    again = plan(rows, epoch=1)
    assert (again.positions != whole.positions).any()


def test_static_masks_return_after_ten_epochs() -> None:
    index = np.arange(8)
    epochs = [RowKeys(0, np.full_like(index, e), index).counter(10) for e in (3, 13, 4)]
    assert (epochs[0] == epochs[1]).all() and (epochs[0] != epochs[2]).all()


@pytest.mark.parametrize(
    ("mask_rate", "random_rate", "expected"), [(0.85, 0.0, (0.85, 0.0, 0.15)), (0.8, 0.1, (0.8, 0.1, 0.1))]
)
def test_what_stands_at_masked_positions(mask_rate: float, random_rate: float, expected: tuple[float, ...]) -> None:
    """[MASK], another token, the token itself, in the proportions of ELECTRA and BERT, by chi-square."""
    rows = np.repeat(make_rows(400, seed=6), 10, axis=0)
    ids = np.arange(5, VOCAB)
    found = plan(rows, mask_rate=mask_rate, random_rate=random_rate, random_ids=ids)
    used = found.weights > 0
    filled = np.take_along_axis(found.inputs, found.positions, axis=1)[used]
    stored = found.labels[used]
    masked, kept = (filled == SPECIAL.mask).sum(), (filled == stored).sum()
    total = used.sum()
    # a random token equals the stored one in 1 of 91 draws, which counts as kept here
    other = expected[1] * (1 - 1 / len(ids))
    wanted = np.array([expected[0], other, 1 - expected[0] - other]) * total
    observed = np.array([masked, total - masked - kept, kept])
    if random_rate == 0:
        observed, wanted = observed[[0, 2]], wanted[[0, 2]]
        assert masked + kept == total
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_positions_are_uniform() -> None:
    """Among the 30 candidates of a full single-segment row every position is drawn equally often."""
    row = np.full(SEQ_LEN, 9)
    row[0], row[-1] = SPECIAL.cls, SPECIAL.sep
    found = plan(np.tile(row, (6000, 1)))
    drawn = np.bincount(found.positions[found.weights > 0], minlength=SEQ_LEN)
    assert drawn[0] == drawn[-1] == 0
    assert chisquare(drawn[1:-1]).pvalue > 1e-3


def test_sampling_uniforms_stay_below_one_in_float32() -> None:
    u = sampling_uniforms(np.arange(200_000), 0, SLOTS)
    assert u.dtype == np.float32 and u.min() >= 0 and u.max() < 1
    assert chisquare(np.bincount((u.ravel() * 20).astype(int), minlength=20)).pvalue > 1e-3
