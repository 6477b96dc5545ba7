"""The largest networks of the papers take a step with ZeRO-1 over two CPU processes."""

import math

import pytest

from tests.training.large_step import ARMS, LARGE, VOCAB, run

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.multi]


@pytest.mark.parametrize("label", ARMS)
def test_one_step_at_full_size(label: str) -> None:
    width, inner = LARGE.hidden_size, LARGE.intermediate_size
    assert (LARGE.num_layers, width, inner) == (24, 1024, 4096)
    embeddings = (VOCAB + 512 + 2 + 2) * width  # with one LayerNorm: two vectors
    layer = 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width + 4 * width
    heads = {  # dense and one logit; or dense, LayerNorm, bias of the vocabulary, pooler and two logits
        "electra": (width + 1) * width + width + 1,
        "bert": (width + 1) * width + 2 * width + VOCAB + (width + 1) * width + 2 * (width + 1),
    }
    # Before the first update every token is as likely as any other, and so is every yes or no
    loss = {"electra": math.log(VOCAB) + 50 * math.log(2), "bert": math.log(VOCAB) + math.log(2)}
    for seen in run(label):
        print(label, {key: round(value, 3) for key, value in seen.items()})
        assert seen["main_parameters"] == embeddings + 24 * layer + heads[label]
        assert seen["loss"] == pytest.approx(loss[label], rel=0.1)
        assert math.isfinite(seen["norm"]) and seen["norm"] > 0 and seen["skipped"] == 0
