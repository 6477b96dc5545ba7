"""Parameters by a closed form: those of the papers, and those of networks that are built."""

import pytest

from pipeline.plan_size import sizes
from tests.training.cases import CASES
from tests.training.synthetic import SPECIAL
from training.arms import ArmConfig, BertArm, ElectraArm, NetworkGenerator
from training.objectives import build
from training.sizes import EncoderConfig, ModelConfig

WORDS = 30522


def sized(name: str) -> EncoderConfig:
    return ModelConfig.model_validate({"size": name}).encoder(WORDS)


@pytest.mark.parametrize(
    ("size", "width", "discriminator", "generator", "joint"),
    [
        # reference/electra.md, section 2: what google-research/electra builds at these sizes
        ("small", 0.25, 13_549_057, 647_162, 14_196_219),
        ("base", 1 / 3, 109_483_009, 9_903_418, 119_386_427),
        ("large", 0.25, 335_142_913, 19_512_378, 354_655_291),
        ("small", 1.0, 13_549_057, 9_573_818, 23_122_875),
    ],
)
def test_electras_sizes(size: str, width: float, discriminator: int, generator: int, joint: int) -> None:
    arm = ElectraArm(learning_rate=1e-4, generator=NetworkGenerator(width=width))
    found = sizes(arm, sized(size))
    assert {name: one.total for name, one in found.items()} == {"discriminator": discriminator, "generator": generator}
    assert sum(one.trained for one in found.values()) == joint


def test_bert_base_is_its_109_482_240_weights_and_its_heads() -> None:
    # transformers' BertModel has 109,482,240 with its pooler; the heads: dense and LayerNorm of 768, a bias a word, two
    # classes of next-sentence prediction
    heads = (768 * 768 + 768) + 2 * 768 + WORDS + (2 * 768 + 2)
    assert sizes(BertArm(learning_rate=1e-4), sized("base"))["encoder"].total == 109_482_240 + heads


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("embedding", [16, 32])
def test_the_closed_form_is_what_is_built(name: str, embedding: int) -> None:
    model = EncoderConfig(
        embedding_size=embedding, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=96, max_positions=40,
        type_vocab=3, vocab_size=101,
    )  # fmt: skip
    arm: ArmConfig = CASES[name]
    objective = build(arm, model, SPECIAL, seq_len=32, packed=False)
    found = sizes(arm, model)
    assert sum(one.total for one in found.values()) == sum(p.numel() for p in objective.parameters())
    trained = sum(p.numel() for p in objective.parameters() if p.requires_grad)
    assert sum(one.trained for one in found.values()) == trained
