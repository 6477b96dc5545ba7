"""Masks: exact counts, never on specials or padding, keyed by row, with the frequencies of the papers."""

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from data_prep.rows import structure
from tests.training.cases import ARMS, ENCODER
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB, make_rows, partners_within
from training.masking import MaskPlan, RowKeys, mask_counts, plan_masks, sampling_uniforms
from training.objectives import RowBatch, build

SLOTS = 5


def plan(rows: np.ndarray) -> MaskPlan:
    counter = RowKeys(0, np.zeros(len(rows), dtype=np.int64), np.arange(len(rows))).counter()
    return plan_masks(
        rows,
        structure(rows, SPECIAL),
        counter,
        seed=0,
        mask_prob=0.15,
        slots=SLOTS,
        mask_id=SPECIAL.mask,
        mask_rate=0.85,
    )


def test_counts_follow_the_reference() -> None:
    """k = max(1, min(N, round(p n))), halves to even: .15 × 10 = 1.5 → 2, .15 × 30 = 4.5 → 4, .25 × 10 = 2.5 → 2."""
    lengths = np.array([0, 2, 10, 30, 128, 512])
    assert mask_counts(lengths, 0.15, 19).tolist() == [0, 1, 2, 4, 19, 19]
    assert mask_counts(np.array([10]), 0.25, 19).tolist() == [2]
    # TensorFlow multiplies in float32, where .15 is a little more than .15: 28.5, 52.5 and 58.5 are rounded up
    assert mask_counts(np.array([190, 350, 390]), 0.15, 100).tolist() == [29, 53, 59]


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


@pytest.mark.parametrize("name", ARMS)
def test_what_is_drawn_depends_on_the_row_alone(name: str) -> None:
    """The same rows in another batch (a rank's share of a step is one), in another order: the same batch, row for row,
    for every objective. Another seed: another batch."""
    rows = make_rows(64, seed=5)
    objective = build(ARMS[name], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)

    def prepare(picked: np.ndarray, seed: int = 7) -> dict[str, np.ndarray]:
        keys = RowKeys(seed, np.zeros_like(picked), picked)
        partners = partners_within(rows, picked=picked)
        return objective.prepare(RowBatch(rows[picked], structure(rows[picked], SPECIAL), keys, partners))

    whole, picked = prepare(np.arange(64)), np.array([40, 3, 17, 63])
    for field, part in prepare(picked).items():
        assert (part == whole[field][picked]).all(), field
    assert (prepare(np.arange(64), seed=8)["mask_positions"] != whole["mask_positions"]).any()


@pytest.mark.parametrize("name", ["bert", "mlm", "roberta"])
def test_only_bert_sees_a_mask_again(name: str) -> None:
    """BERT's ten versions return after ten epochs, and are ten; the others' masks are fresh every epoch."""
    rows = make_rows(64, seed=5)
    objective = build(ARMS[name], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    index = np.arange(64)
    seen = [
        objective.prepare(
            RowBatch(
                rows, structure(rows, SPECIAL), RowKeys(0, np.full_like(index, epoch), index), partners_within(rows)
            )
        )["mask_positions"].tobytes()
        for epoch in range(20)
    ]
    assert len(set(seen[:10])) == 10
    assert seen[10:] == seen[:10] if name == "bert" else len(set(seen)) == 20


# Of the masked positions: [MASK], another token, the stored one (google-research/electra; Devlin et al. 2019).
FATES = {name: (0.8, 0.1, 0.1) if name in ("bert", "roberta") else (0.85, 0.0, 0.15) for name in ARMS}


@pytest.mark.parametrize("name", ARMS)
def test_what_stands_at_masked_positions(name: str) -> None:
    """In the proportions of ELECTRA and BERT, by chi-square (two degrees of freedom, one without random tokens); the
    test is sharp enough to tell rates that are wrong by two percent."""
    objective = build(ARMS[name], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    rows = np.repeat(make_rows(400, seed=6), 25, axis=0)
    index = np.arange(len(rows))
    lonely = partners_within(rows[:1], picked=np.zeros_like(index))  # no row has a partner: segments stay
    host = objective.prepare(RowBatch(rows, structure(rows, SPECIAL), RowKeys(0, index * 0, index), lonely))
    used = host["mask_weights"] > 0
    filled = np.take_along_axis(host["inputs"], host["mask_positions"], axis=1)[used]
    stored = host["mask_labels"][used]
    masked, kept, total = (filled == SPECIAL.mask).sum(), (filled == stored).sum(), used.sum()
    observed = np.array([masked, total - masked - kept, kept])
    # a random token is now and then the stored one, or (BERT's may be special) [MASK]
    entries, special = (VOCAB, 1) if name == "bert" else (VOCAB - 5, 0)

    def pvalue(mask: float, random: float, keep: float) -> float:
        other = random * (1 - (1 + special) / entries)
        wanted = np.array([mask + special * random / entries, other, keep + random / entries]) * total
        present = wanted > 0
        assert observed[~present].sum() == 0
        return float(chisquare(observed[present], wanted[present]).pvalue)

    mask, random, keep = FATES[name]
    assert pvalue(mask, random, keep) > 1e-4
    assert pvalue(mask - 0.02, random, keep + 0.02) < 1e-4


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_random_tokens_are_uniform_and_roberta_draws_no_special_one(name: str) -> None:
    """BERT's create_pretraining_data draws from the whole vocabulary, fairseq from what is not special."""
    objective = build(ARMS[name], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    rows = np.full((30_000, SEQ_LEN), 5)
    rows[:, 0], rows[:, -1] = SPECIAL.cls, SPECIAL.sep
    index = np.arange(len(rows))
    lonely = partners_within(rows[:1], picked=np.zeros_like(index))
    host = objective.prepare(RowBatch(rows, structure(rows, SPECIAL), RowKeys(0, index * 0, index), lonely))
    filled = np.take_along_axis(host["inputs"], host["mask_positions"], axis=1)[host["mask_weights"] > 0]
    drawn = np.bincount(filled, minlength=VOCAB)
    drawn_specials, drawn_words = drawn[[SPECIAL.pad, SPECIAL.unk, SPECIAL.cls, SPECIAL.sep]], drawn[6:]
    if name == "roberta":
        assert drawn_specials.sum() == 0
    counted = drawn_words if name == "roberta" else np.concatenate([drawn_specials, drawn_words])
    assert chisquare(counted).pvalue > 1e-4


def test_positions_are_uniform() -> None:
    """Among the n = 30 candidates of a full single-segment row every position is drawn equally often. The k = 5 of a
    row are drawn without replacement, which makes counts vary less than a multinomial's: by (n − k)/(n − 1)."""
    row = np.full(SEQ_LEN, 9)
    row[0], row[-1] = SPECIAL.cls, SPECIAL.sep
    rows, k, n = 20_000, SLOTS, SEQ_LEN - 2
    found = plan(np.tile(row, (rows, 1)))
    assert found.count == rows * k
    drawn = np.bincount(found.positions[found.weights > 0], minlength=SEQ_LEN)
    assert drawn[0] == drawn[-1] == 0
    statistic = chisquare(drawn[1:-1]).statistic * (n - 1) / (n - k)
    assert 1e-4 < chi2.sf(statistic, n - 1) < 1 - 1e-4
    pairs = np.zeros((n, n))  # and every pair of positions
    first, second = np.triu_indices(k, 1)
    np.add.at(pairs, (found.positions[:, first] - 1, found.positions[:, second] - 1), 1)
    together = pairs[np.triu_indices(n, 1)]
    assert np.abs(together / together.mean() - 1).max() < 6 / np.sqrt(together.mean())


def test_sampling_uniforms_stay_below_one_in_float32() -> None:
    u = sampling_uniforms(np.arange(200_000), 0, SLOTS)
    assert u.dtype == np.float32 and u.min() >= 0 and u.max() < 1
    assert chisquare(np.bincount((u.ravel() * 20).astype(int), minlength=20)).pvalue > 1e-4
