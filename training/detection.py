"""Sampling replacements, and measuring how well they are detected.

Sampling inverts the cumulative distribution with one uniform a position. Detection statistics are sums, so that they
add over micro-batches, ranks and steps; the AUC comes from histograms because sorting does not add.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

AUC_BINS, AUC_RANGE = 1024, 16.0  # bins of the logit, over ± the range
# A discriminator knows no more than the base rate if it explains less than this share of the label entropy *and* ranks
# no better than this AUC: one that ranks well may be badly calibrated, since the generator samples without dropout when
# it is evaluated and so replaces fewer tokens than in training.
LITTLE_INFORMATION, LITTLE_ORDER = 0.01, 0.55


def sample_tokens(logits_BKV: Tensor, uniforms_BK: Tensor) -> Tensor:
    """Token ids `[B, K]` drawn from softmax(logits) by inverting the cumulative distribution, in the logits' dtype.

    One uniform a position: the same distribution as Gumbel-max at a fraction of the random numbers.
    """
    cumulative = logits_BKV.softmax(-1).cumsum(-1)
    if cumulative.is_cuda:  # a parallel scan may fall by a rounding, which a search must not see
        cumulative = cumulative.cummax(-1).values
    threshold = uniforms_BK[:, :, None].to(cumulative.dtype) * cumulative[..., -1:]
    # the first token whose cumulative probability exceeds the threshold; its own probability is then positive
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return drawn.clamp(max=logits_BKV.shape[-1] - 1)


def detection_statistics(
    scores: Tensor, replaced: Tensor, judged: Tensor, masked: Tensor, losses: Tensor
) -> dict[str, Tensor]:
    """Sums from which accuracy, precision, recall, losses of each class and AUCs follow; all arguments of one shape.

    `replaced`, `judged` (what counts at all) and `masked` (where a sample stands, right or wrong) are boolean. The AUC
    comes from histograms of the scores, because histograms add over micro-batches and ranks and sorting does not.
    """
    fakes = replaced & judged
    flagged = (scores > 0) & judged
    # a diverging run has NaN scores, which no bin takes: they must reach the loss and its check, not an index error
    place = (scores.nan_to_num(0.0).clamp(-AUC_RANGE, AUC_RANGE) + AUC_RANGE) / (2 * AUC_RANGE)
    bins = (place * AUC_BINS).long().clamp(max=AUC_BINS - 1).flatten()
    classes = (judged & ~masked, judged & masked & ~replaced, fakes)  # never touched; sampled right; replaced
    histogram = torch.zeros(3, AUC_BINS, device=scores.device)
    for row, members in zip(histogram, classes, strict=True):
        row.scatter_add_(0, bins, members.flatten().float())
    return {
        "judged": judged.sum(),
        "replaced": fakes.sum(),
        "flagged": flagged.sum(),
        "caught": (flagged & fakes).sum(),
        "rtd_loss_replaced": (losses * fakes).sum(),
        "histogram": histogram,
    }


def histogram_auc(negatives: NDArray[np.float64], positives: NDArray[np.float64]) -> float:
    """Area under the ROC curve from two histograms over the same bins, ties within a bin counted half; NaN if a class
    is empty."""
    total = negatives.sum() * positives.sum()
    if total == 0:
        return float("nan")
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / total)


def label_entropy(rate: float) -> float:
    """Entropy in nats of a label that is 1 at `rate`: the loss of a detector that knows the base rate and no more."""
    return 0.0 if rate in (0.0, 1.0) else float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))


def detection_figures(sums: dict[str, Any]) -> dict[str, float]:
    """Figures of the replaced-token detector from summed `detection_statistics` and the summed `rtd_loss`.

    Precision, recall and loss are given for replaced and for original tokens apart. `rtd_auc` ranks the replaced tokens
    against all original ones, `rtd_auc_masked` against those that the generator sampled right: the harder half.
    """
    judged, replaced, flagged, caught = (float(sums[k]) for k in ("judged", "replaced", "flagged", "caught"))
    untouched, right, fakes = np.asarray(sums["histogram"], dtype=np.float64)
    original, passed = judged - replaced, judged - flagged
    passed_original = original - (flagged - caught)
    rate, loss = replaced / max(judged, 1.0), sums["rtd_loss"] / max(judged, 1.0)
    entropy = label_entropy(rate)
    return {
        "flagged_rate": flagged / max(judged, 1.0),
        "rtd_label_entropy": entropy,
        "rtd_information": 1.0 - loss / entropy if entropy else float("nan"),  # share of the label entropy explained
        "rtd_loss_replaced": sums["rtd_loss_replaced"] / max(replaced, 1.0),
        "rtd_loss_original": (sums["rtd_loss"] - sums["rtd_loss_replaced"]) / max(original, 1.0),
        "rtd_accuracy": (caught + passed_original) / max(judged, 1.0),
        "rtd_precision": caught / max(flagged, 1.0),
        "rtd_recall": caught / max(replaced, 1.0),
        "rtd_precision_original": passed_original / max(passed, 1.0),
        "rtd_recall_original": passed_original / max(original, 1.0),
        "rtd_auc": histogram_auc(untouched + right, fakes),
        "rtd_auc_masked": histogram_auc(right, fakes),
    }


def detection_verdict(figures: dict[str, float]) -> str | None:
    """A sentence where the discriminator has learned nothing but how often tokens are replaced, or has nothing to tell
    apart; None otherwise.

    A loss that looks healthy is no sign: with 6 % of the tokens replaced, calling every token original costs .227 nats.
    """
    if figures["rtd_label_entropy"] == 0:
        return "the discriminator has nothing to tell apart: the generator's samples are all right, or all wrong"
    if figures["rtd_information"] >= LITTLE_INFORMATION or figures["rtd_auc"] >= LITTLE_ORDER:
        return None
    flagged = figures["flagged_rate"]
    habit = "calls every token original and" if flagged == 0 else f"flags {flagged:.2%} of the tokens and"
    return (
        f"the discriminator {habit} does no better than the base rate (loss {figures['rtd_loss']:.4f}, label entropy "
        f"{figures['rtd_label_entropy']:.4f} nats, AUC {figures['rtd_auc']:.3f}); lower the arm's learning_rate or "
        "warm up longer"
    )
