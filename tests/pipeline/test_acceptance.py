"""The exported pair at work: Hugging Face models alone, on held-out rows."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.conftest import Road
from tests.pipeline.acceptance import auc_with_error, replaced_token_auc


def test_the_error_of_an_area_by_hand() -> None:
    """Hanley & McNeil at A = .5 is √((n + m + 1) / 12 n m), the Mann-Whitney variance, up to their approximation."""
    rng = np.random.default_rng(0)
    labels, scores = np.repeat([True, False], 200), rng.normal(size=400)
    area, error, positives = auc_with_error(labels, scores)
    assert area == roc_auc_score(labels, scores) and positives == 200
    assert error == pytest.approx(np.sqrt(401 / (12 * 200 * 200)), rel=0.03)


@pytest.mark.slow
@pytest.mark.multi
def test_the_exported_discriminator_detects_what_the_exported_generator_replaced(road: Road) -> None:
    area, error, replaced = replaced_token_auc(road.out)
    assert replaced > 100
    assert area > 0.5 + 2 * error
