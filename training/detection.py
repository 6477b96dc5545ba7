"""Sampling replacements, and measuring how well they are detected.

Sampling inverts the cumulative distribution with one uniform a position. Detection statistics are sums, so that they
add over micro-batches, ranks and steps; the AUC comes from histograms because sorting does not add.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

AUC_BINS = 1024


def sample_tokens(logits_BKV: Tensor, uniforms_BK: Tensor, temperature: float) -> Tensor:
    """Token ids `[B, K]` drawn from softmax(logits / temperature) by inverting the cumulative distribution in fp32.

    One uniform a position: the same distribution as Gumbel-max at a fraction of the random numbers.
    """
    cumulative = (logits_BKV.detach().float() / temperature).softmax(-1).cumsum(-1)
    threshold = uniforms_BK[:, :, None] * cumulative[..., -1:]
    # the first token whose cumulative probability exceeds the threshold; its own probability is then positive
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return drawn.clamp(max=logits_BKV.shape[-1] - 1)


def detection_statistics(scores_BL: Tensor, fake_BL: Tensor, real_BL: Tensor) -> dict[str, Tensor]:
    """Sums from which accuracy, precision, recall and AUC follow; the AUC from histograms of sigmoid(score), because
    histograms add over micro-batches and ranks and sorting does not."""
    flagged = (scores_BL > 0).float() * real_BL
    fakes = fake_BL * real_BL
    # a diverging run has NaN scores, which no bin takes: they must reach the loss and its check, not an index error
    bins = (scores_BL.nan_to_num(0.0).sigmoid() * AUC_BINS).long().clamp(max=AUC_BINS - 1).flatten()
    histogram = torch.zeros(2, AUC_BINS, device=scores_BL.device)
    histogram[0].scatter_add_(0, bins, (real_BL - fakes).flatten())
    histogram[1].scatter_add_(0, bins, fakes.flatten())
    return {
        "replaced": fakes.sum(),
        "flagged": flagged.sum(),
        "caught": (flagged * fakes).sum(),
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


def detection_metrics(sums: dict[str, Any]) -> dict[str, float]:
    """Figures of the replaced-token detector from summed `detection_statistics`."""
    real, replaced, flagged, caught = (float(sums[k]) for k in ("real", "replaced", "flagged", "caught"))
    histogram = np.asarray(sums["histogram"], dtype=np.float64)
    rate = replaced / max(real, 1.0)
    entropy = 0.0 if rate in (0.0, 1.0) else float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))
    return {
        "replaced_rate": rate,
        "rtd_label_entropy": entropy,  # the loss of a detector that knows the base rate and nothing else
        "rtd_accuracy": 1.0 - (replaced + flagged - 2 * caught) / max(real, 1.0),
        "rtd_precision": caught / max(flagged, 1.0),
        "rtd_recall": caught / max(replaced, 1.0),
        "rtd_auc": histogram_auc(histogram[0], histogram[1]),
    }
