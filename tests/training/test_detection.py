"""Samples follow the generator's distribution; figures of the detector equal scikit-learn's; a detector that has
learned nothing is called that."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.stats import chisquare
from sklearn.metrics import accuracy_score, log_loss, precision_score, recall_score, roc_auc_score

from tests.training.cases import ARMS, ENCODER, RATE
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB
from training.arms import Electra15Arm, ElectraArm, NetworkGenerator, UniformGenerator
from training.detection import AUC_BINS, AUC_RANGE, detection_figures, detection_statistics, sample_tokens
from training.masking import sampling_uniforms
from training.objectives import Objective, build

DRAWS = 40_000
TRUE_TOKEN = 17


def drawn(generator: NetworkGenerator) -> tuple[np.ndarray, np.ndarray]:
    """How often each token is sampled from random logits with keyed uniforms, and the logits."""
    objective = build(
        ElectraArm(learning_rate=RATE, generator=generator), ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False
    )
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 1.5
    slots = 8
    uniforms = torch.from_numpy(sampling_uniforms(np.arange(DRAWS // slots), 0, slots))
    batch = {"uniforms": uniforms, "mask_labels": torch.full_like(uniforms, TRUE_TOKEN, dtype=torch.int64)}
    sampled = objective.generator.sample(logits.expand(*uniforms.shape, VOCAB), batch)
    return np.bincount(sampled.flatten().numpy(), minlength=VOCAB), logits.double().numpy()


def pvalue(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square; tokens of fewer than five expected draws count with the rarest that has more."""
    wanted = probabilities / probabilities.sum() * observed.sum()
    order = np.argsort(-wanted)
    classes = np.minimum(np.arange(len(wanted)), (wanted >= 5).sum() - 1)
    merged = [np.bincount(classes, weights=counts[order]) for counts in (observed, wanted)]
    return float(chisquare(*merged).pvalue)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_samples_follow_the_softmax_at_a_temperature(temperature: float) -> None:
    """By chi-square, which a temperature five percent off does not pass."""
    observed, logits = drawn(NetworkGenerator(temperature=temperature))
    assert pvalue(observed, np.exp(logits / temperature)) > 1e-4
    assert pvalue(observed, np.exp(logits / (1.05 * temperature))) < 1e-4


def test_the_true_token_is_never_sampled_where_that_is_disallowed() -> None:
    """The others keep their proportions."""
    observed, logits = drawn(NetworkGenerator(disallow_correct=True, temperature=0.7))
    assert observed[TRUE_TOKEN] == 0
    probabilities = np.exp(logits / 0.7)
    assert pvalue(np.delete(observed, TRUE_TOKEN), np.delete(probabilities, TRUE_TOKEN)) > 1e-4
    allowed, _ = drawn(NetworkGenerator(temperature=0.7))
    assert allowed[TRUE_TOKEN] > 0


@pytest.mark.parametrize("disallow_correct", [False, True])
def test_chance_draws_every_token_alike(disallow_correct: bool) -> None:
    """All of them, or all but the true one."""
    arm = ElectraArm(learning_rate=RATE, generator=UniformGenerator(disallow_correct=disallow_correct))
    objective = build(arm, ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    uniforms = torch.from_numpy(sampling_uniforms(np.arange(10_000), 0, 8))
    labels = torch.full_like(uniforms, TRUE_TOKEN, dtype=torch.int64)
    batch = {"uniforms": uniforms, "mask_labels": labels, "mask_weights": torch.ones_like(uniforms)}
    proposal = objective.generator(batch)
    observed = np.bincount(proposal.sampled_BK.flatten().numpy(), minlength=VOCAB)
    assert len(observed) == VOCAB and proposal.statistics["sampled_hits"] == observed[TRUE_TOKEN]
    if disallow_correct:
        assert observed[TRUE_TOKEN] == 0
        observed = np.delete(observed, TRUE_TOKEN)
    assert pvalue(observed, np.ones(len(observed))) > 1e-4


def test_sampling_at_the_ends_never_picks_an_impossible_token() -> None:
    logits = torch.tensor([[[-1e9, 0.0, -1e9, 0.0, -1e9]]])
    for u, expected in ((0.0, 1), (0.4999, 1), (0.5001, 3), (1 - 2**-24, 3)):
        assert sample_tokens(logits, torch.tensor([[u]])).item() == expected


def statistics(
    scores: torch.Tensor, replaced: torch.Tensor, judged: torch.Tensor, masked: torch.Tensor
) -> dict[str, np.ndarray]:
    """Sums of two halves added up, as those of two micro-batches are, with the summed loss."""
    losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, replaced.to(scores.dtype), reduction="none")
    halves = [
        detection_statistics(*(x[half] for x in (scores, replaced, judged, masked, losses)))
        for half in (slice(0, 3), slice(3, None))
    ]
    sums = {name: (halves[0][name].double() + halves[1][name].double()).numpy() for name in halves[0]}
    return {**sums, "rtd_loss": (losses * judged).sum().double().numpy()}


def test_detection_figures_equal_scikit_learn() -> None:
    """Accuracy, precision and recall of both classes, losses, AUC against all originals and against those sampled
    right. Scores stand in the middle of the AUC's bins, where a histogram loses nothing."""
    random = torch.Generator().manual_seed(2)
    shape = (8, 400)
    masked = torch.rand(shape, generator=random) < 0.3
    replaced = masked & (torch.rand(shape, generator=random) < 0.6)
    judged = torch.rand(shape, generator=random) < 0.9
    noisy = torch.randn(shape, generator=random, dtype=torch.float64) + 0.8 * replaced - 0.4 + 0.3 * masked
    scores = (((noisy + AUC_RANGE) / (2 * AUC_RANGE) * AUC_BINS).floor() + 0.5) / AUC_BINS * 2 * AUC_RANGE - AUC_RANGE
    found = detection_figures(statistics(scores, replaced, judged, masked))

    labels, kept_scores = replaced[judged].numpy(), scores[judged].numpy()
    flags, probabilities = kept_scores > 0, 1 / (1 + np.exp(-kept_scores))
    tampered = masked[judged].numpy()
    assert 0 < labels.sum() < tampered.sum() < len(labels)
    rate = labels.mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    expected = {
        "flagged_rate": flags.mean(),
        "rtd_label_entropy": entropy,
        "rtd_information": 1 - log_loss(labels, probabilities) / entropy,
        "rtd_loss_replaced": log_loss(labels[labels], probabilities[labels], labels=[False, True]),
        "rtd_loss_original": log_loss(labels[~labels], probabilities[~labels], labels=[False, True]),
        "rtd_accuracy": accuracy_score(labels, flags),
        "rtd_precision": precision_score(labels, flags),
        "rtd_recall": recall_score(labels, flags),
        "rtd_precision_original": precision_score(~labels, ~flags),
        "rtd_recall_original": recall_score(~labels, ~flags),
        "rtd_auc": roc_auc_score(labels, probabilities),
        "rtd_auc_masked": roc_auc_score(labels[tampered], probabilities[tampered]),
    }
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_histogram_costs_the_auc_less_than_a_thousandth() -> None:
    random = torch.Generator().manual_seed(4)
    replaced = torch.rand(8, 2000, generator=random) < 0.06
    scores = torch.randn(8, 2000, generator=random) - 3 + replaced  # timid, as detectors are: probabilities near .06
    everywhere = torch.ones_like(replaced)
    found = detection_figures(statistics(scores, replaced, everywhere, replaced))
    assert found["rtd_auc"] == pytest.approx(roc_auc_score(replaced.flatten(), scores.flatten()), abs=1e-3)
    assert np.isnan(found["rtd_auc_masked"])  # nothing was sampled right


def verdict(scores: torch.Tensor, replaced: torch.Tensor, objective: Objective) -> str | None:
    figures = detection_figures(statistics(scores, replaced, torch.ones_like(replaced), replaced))
    losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, replaced.float())
    return objective.verdict({**figures, "rtd_loss": losses.item()})


@pytest.mark.parametrize("name", ["electra", "electra_15", "electra_adversarial", "electra_two_stage"])
def test_a_detector_that_has_learned_nothing_is_called_that(name: str) -> None:
    """Whether it calls all tokens original at the base rate, with more confidence than it has a right to, all replaced,
    or some at random; its loss looks healthy (the label entropy of 6 % is .227 nats)."""
    objective = build(ARMS[name], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    random = torch.Generator().manual_seed(5)
    replaced = torch.rand(8, 2000, generator=random) < 0.06
    base_rate = replaced.float().mean().logit()
    noise = torch.randn(replaced.shape, generator=random)
    all_original = verdict(base_rate.expand(replaced.shape), replaced, objective)
    assert all_original is not None and "calls every token original" in all_original and "0.22" in all_original
    assert "calls every token original" in (verdict(torch.full(replaced.shape, -9.0), replaced, objective) or "")
    assert "flags 100.00% of the tokens" in (verdict(torch.full(replaced.shape, 2.0), replaced, objective) or "")
    assert "no better than the base rate" in (verdict(base_rate + noise, replaced, objective) or "")


@pytest.mark.parametrize("name", ["electra", "electra_15", "electra_adversarial", "electra_two_stage"])
def test_a_detector_that_has_learned_is_left_alone(name: str) -> None:
    """Also one that never dares to call a token replaced, but knows which are likelier."""
    objective = build(ARMS[name], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    random = torch.Generator().manual_seed(6)
    likely = torch.rand(8, 2000, generator=random) < 0.2  # a fifth of the tokens is replaced at 22 %, the rest at 2 %
    chance = torch.where(likely, 0.22, 0.02)
    replaced = torch.rand(chance.shape, generator=random) < chance
    assert verdict(chance.logit(), replaced, objective) is None
    assert verdict(6.0 * replaced - 3.0, replaced, objective) is None
    # ranks well and is far too sure of itself: badly calibrated, not degenerate
    too_sure = verdict(8.0 * (chance.logit() + 4.0), replaced, objective)
    assert too_sure is None


def test_where_all_samples_are_alike_there_is_nothing_to_tell_apart() -> None:
    objective = build(ARMS["electra"], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    none = torch.zeros(2, 50, dtype=torch.bool)
    for replaced in (none, ~none):
        assert "nothing to tell apart" in (verdict(torch.zeros(2, 50), replaced, objective) or "")
    with pytest.raises(ValidationError, match="every token that electra_15 judges would be replaced"):
        Electra15Arm(learning_rate=1e-3, generator=NetworkGenerator(disallow_correct=True))


@pytest.mark.parametrize("name", ["replace_mlm", "all_tokens_mlm", "mlm", "bert", "roberta"])
def test_what_detects_nothing_has_no_verdict(name: str) -> None:
    objective = build(ARMS[name], ENCODER, SPECIAL, seq_len=SEQ_LEN, packed=False)
    assert objective.verdict({"loss": 10.0}) is None
