"""Scores of sentences: against a plain loop over Hugging Face models, by hand where the answer is known, at chance
where nothing is."""

from dataclasses import replace
from math import exp, log, log1p, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from data_prep import tokenizer as tokenizers
from data_prep.errors import ConfigError, DataError
from data_prep.tokenizer import Tokenizer
from tests.training.hf_models import cast, our_network, saved, special_of, their_model, their_outputs
from tests.training.pair_cases import chance_pairs, cut, needs_real, official, real, tokenizer_of, words
from tests.training.synthetic import MODEL, SPECIAL, VOCAB
from training import hf_import, minimal_pairs
from training.blimp import Pair, Paradigm
from training.encoder import Embeddings, Encoder
from training.heads import MaskedTokenHead, ReplacedTokenHead
from training.minimal_pairs import PairScores, ParadigmScore, Scorer, score_paradigms
from training.network import Network

CPU = torch.device("cpu")
W = words()
# one word; a difference of length; as long as the model's positions; what spells special tokens; what is unknown
PAIRS = (
    Pair(W[0], W[1]),
    Pair(f"{W[3]} {W[4]} {W[5]}", f"{W[3]} {W[5]}"),
    Pair(" ".join(W[:30]), " ".join(W[30:60])),
    Pair(f"{W[7]} [MASK] {W[8]} <mask>", f"{W[7]} [SEP] {W[8]} </s>"),
    Pair(f"{W[9]} nowhere {W[9]}", f"nowhere {W[9]} {W[9]}"),
)


def margins(
    network: Network, scorer: Scorer, tokenizer: Tokenizer, paradigms: list[Paradigm]
) -> dict[str, ParadigmScore]:
    return score_paradigms(network, scorer, tokenizer=tokenizer, paradigms=paradigms, device=CPU).paradigms


def plain_score(model: transformers.PreTrainedModel, scorer: Scorer, row: list[int], mask: int) -> float:
    """One sentence alone, one word after the other, in float64."""

    def logits(ids: list[int]) -> Tensor:
        return their_outputs(model, input_ids=torch.tensor([ids]))["mlm" if scorer == "pll" else "rtd"][0]

    if scorer == "rtd":
        return sum(log(1.0 - 1.0 / (1.0 + exp(-logit))) for logit in logits(row)[1:-1].tolist())
    total = 0.0
    for place in range(1, len(row) - 1):
        chances = logits([*row[:place], mask, *row[place + 1 :]])[place].softmax(-1)
        total += log(chances[row[place]])
    return total


@pytest.mark.parametrize(
    ("case", "scorer"),
    [("narrow discriminator", "rtd"), ("narrow generator", "pll"), ("bert", "pll"), ("roberta", "pll")],
)
def test_scores_are_those_of_a_plain_loop_over_their_model(case: str, scorer: Scorer, tmp_path: Path) -> None:
    saved(case, tmp_path)
    model, network = their_model(case), hf_import.read(tmp_path).network()
    special = special_of(type(model).__name__)
    tokenizer = tokenizer_of(special)
    expected = []
    for pair in PAIRS:
        sides = [[special.cls, *tokenizer.encode([sentence])[0], special.sep] for sentence in (pair.good, pair.bad)]
        assert special.mask not in sides[0] and sides[0].count(special.sep) == sides[1].count(special.sep) == 1
        good, bad = (plain_score(model.double(), scorer, side, special.mask) for side in sides)
        expected.append(good - bad)
    assert min(map(abs, expected)) > 0.01
    paradigms = [Paradigm("a", "", PAIRS[:2]), Paradigm("b", "", PAIRS[2:])]
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
        found = margins(cast(network, dtype), scorer, tokenizer, paradigms)
        assert list(found) == ["a", "b"]
        assert np.abs(np.concatenate([found["a"].margins, found["b"].margins]) - expected).max() < tolerance
        assert found["b"].hits == sum(margin > 0 for margin in expected[2:])


def blank(heads: tuple[str, ...]) -> Network:
    """A network whose heads give their bias, whatever the sentence."""
    torch.manual_seed(0)
    config = MODEL.encoder(VOCAB)
    made = {"mlm": MaskedTokenHead, "rtd": ReplacedTokenHead}
    network = Network(config, Embeddings(config), Encoder(config), {head: made[head](config) for head in heads})
    with torch.no_grad():
        for head in network.heads.values():
            for name, parameter in head.named_parameters():
                if name.startswith(("dense", "norm", "out.weight")):
                    parameter.zero_()
    return network


def test_a_model_of_word_frequencies_by_hand() -> None:
    """P of the four words is .5, .25, .125, .125: each pair's margin is a whole number of log 2, and order is a tie."""
    network = blank(("mlm",))
    a, b, c, d = W[:4]
    tokenizer = tokenizer_of(SPECIAL)
    bias = torch.full((VOCAB,), -1e4)
    bias[torch.tensor(tokenizer.encode([f"{a} {b} {c} {d}"])[0])] = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    mlm = network.heads["mlm"]
    assert isinstance(mlm, MaskedTokenHead)
    mlm.bias.data.copy_(bias)
    pairs = {
        Pair(a, b): 1,
        Pair(d, c): 0,
        Pair(f"{a} {b}", f"{d} {c}"): 3,
        Pair(f"{b} {b}", f"{b}"): -2,  # not divided by length
        Pair(f"{a} {b} {c} {d}", f"{d} {a} {c} {b}"): 0,
        Pair(f"{c} {a}", f"{c} {a}"): 0,
    }
    (found,) = margins(network, "pll", tokenizer, [Paradigm("x", "", tuple(pairs))]).values()
    assert np.allclose(found.margins / log(2), [*pairs.values()], atol=1e-6)
    assert (found.n, found.hits, found.accuracy) == (6, 2, 1 / 3)
    assert (found.margins == 0).sum() == 3  # exactly: rounding decides nothing


def test_a_detector_that_says_the_same_of_every_token() -> None:
    network = blank(("rtd",))
    rtd = network.heads["rtd"]
    assert isinstance(rtd, ReplacedTokenHead)
    rtd.out.bias.data.fill_(-1.5)  # log P(original) of each token is -log(1 + e^-1.5)
    paradigm = Paradigm("x", "", (Pair(W[0], f"{W[0]} {W[1]} {W[2]}"), Pair(f"{W[0]} {W[1]}", f"{W[2]} {W[3]}")))
    (found,) = margins(network, "rtd", tokenizer_of(SPECIAL), [paradigm]).values()
    assert np.allclose(found.margins, [2 * log1p(exp(-1.5)), 0.0], atol=1e-6)
    assert found.hits == 1


@pytest.mark.parametrize(("case", "scorer"), [("bert", "pll"), ("discriminator", "rtd")])
def test_batches_change_nothing_and_are_bounded(case: str, scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, paradigms = tokenizer_of(SPECIAL), chance_pairs(2, 8, seed=1)
    network = cast(our_network(case), torch.float64)
    whole = margins(network, scorer, tokenizer, paradigms)
    tokens, rows = list[int](), list[int]()
    network.embeddings.register_forward_hook(lambda _m, _i, out: tokens.append(out.shape[0] * out.shape[1]))
    if scorer == "pll":
        network.heads["mlm"].register_forward_hook(lambda _m, _i, out: rows.append(out.shape[0]))
    monkeypatch.setattr(minimal_pairs, "BATCH_TOKENS", 64)
    monkeypatch.setattr(minimal_pairs, "BATCH_LOGITS", 3 * VOCAB + 1)
    parts = margins(network, scorer, tokenizer, paradigms)
    for name, score in whole.items():
        assert np.abs(score.margins - parts[name].margins).max() < 1e-9
    assert max(tokens) <= 64 and len(tokens) > 8
    assert set(rows) == ({1, 2, 3} if scorer == "pll" else set())


@pytest.mark.parametrize(("case", "scorer"), [("mlm", "pll"), ("discriminator", "rtd")])
def test_what_knows_nothing_is_at_chance(case: str, scorer: Scorer) -> None:
    """Good and bad are exchangeable: hits are binomial with 1/2, and so is the spread of paradigms."""
    found = score_paradigms(
        our_network(case), scorer, tokenizer=tokenizer_of(SPECIAL), paradigms=chance_pairs(25, 40, 2, 8), device=CPU
    )
    expected = sqrt(0.25 / 40 / 25)
    assert abs(found.mean - 0.5) < 3 * expected
    assert found.standard_error is not None and 0.6 * expected < found.standard_error < 1.5 * expected
    assert found.scorer == scorer and found.finite


@needs_real
def test_random_weights_are_at_chance_on_the_real_pairs() -> None:
    tokenizer = tokenizers.load(real("vocab/bert-base-uncased/vocab.txt"))
    torch.manual_seed(1)
    config = MODEL.encoder(tokenizer.vocab_size)
    heads = {"mlm": MaskedTokenHead(config), "rtd": ReplacedTokenHead(config)}
    network = Network(config, Embeddings(config), Encoder(config), heads)
    paradigms = cut(official(), 2).paradigms
    for scorer in minimal_pairs.scorers(network):
        found = score_paradigms(network, scorer, tokenizer=tokenizer, paradigms=paradigms, device=CPU)
        assert len(found.paradigms) == 67
        assert found.standard_error is not None and abs(found.mean - 0.5) < 3 * found.standard_error


def test_mean_and_standard_error_by_hand() -> None:
    """Accuracies of 1/2, 0 and 1, each counting alike whatever its pairs: sd = 1/2."""
    paradigms = {
        "a": ParadigmScore(np.array([1.0, -1.0, 0.0, 1e-9])),
        "b": ParadigmScore(np.array([0.0])),
        "c": ParadigmScore(np.array([3.0, np.inf])),
    }
    found = PairScores(scorer="pll", paradigms=paradigms, seconds=0.0, cpu_seconds=0.0)
    assert (found.mean, found.finite) == (0.5, False)
    assert found.standard_error == pytest.approx(0.5 / sqrt(3))
    alone = PairScores(scorer="pll", paradigms={"a": paradigms["a"]}, seconds=0.0, cpu_seconds=0.0)
    assert (alone.mean, alone.standard_error, alone.finite) == (0.5, None, True)


def test_a_broken_network_hits_nothing() -> None:
    network = our_network("mlm")
    with torch.no_grad():
        network.embeddings.norm.weight.fill_(float("nan"))
    found = score_paradigms(
        network, "pll", tokenizer=tokenizer_of(SPECIAL), paradigms=chance_pairs(1, 3, 0), device=CPU
    )
    assert (found.mean, found.finite) == (0.0, False)


def test_what_cannot_be_scored() -> None:
    tokenizer, network = tokenizer_of(SPECIAL), our_network("mlm")
    small = replace(network, config=network.config.model_copy(update={"vocab_size": VOCAB - 1}))

    def refused(pair: Pair, scorer: Scorer = "pll", network: Network = network) -> str:
        with pytest.raises((ConfigError, DataError)) as caught:
            margins(network, scorer, tokenizer, [Paradigm("x", "", (Pair(W[0], W[1]), pair))])
        return str(caught.value)

    assert "has no rtd head, which the scorer rtd asks" in refused(Pair(W[2], W[3]), "rtd")
    assert "is 33 tokens and the network has 32 positions" in refused(Pair(" ".join(W[:31]), W[0]))
    assert "makes no token of the sentence ' '" in refused(Pair(W[0], " "))
    assert "knows the id 95 and the network's vocabulary ends at 95" in refused(Pair(W[0], W[-1]), network=small)
