"""The paper's ledger gives the figures the original script prints, to the last digit it printed."""

import pytest

from training.paper_flops import Transformer, train_arm, train_electra
from training.settings import BertArm, ElectraArm, EncoderConfig

SMALL = Transformer(hidden_size=256, num_layers=12, seq_len=128, embedding_size=128)
BASE = Transformer(hidden_size=768, num_layers=12, seq_len=512)
LARGE = Transformer(hidden_size=1024, num_layers=24, seq_len=512)
ROBERTA = Transformer(hidden_size=1024, num_layers=24, seq_len=512, vocab_size=50_265)


@pytest.mark.parametrize(
    ("network", "steps", "batch", "expected"),
    [
        (Transformer(hidden_size=768, num_layers=12, seq_len=512, vocab_size=40_000, output_fraction=1.0), 960_800, 128,
         3.968752230785352e19),
        (SMALL, 1.45e6, 128, 1.4187399146496e18),
        (BASE, 1e6, 256, 6.428335104e19),
        (LARGE, 1e6, 256, 1.91720905883648e20),
        (ROBERTA, 5e5, 8000, 3.187221435776e21),
        (Transformer(hidden_size=4096, num_layers=12, seq_len=512, vocab_size=30_000, embedding_size=128), 1.5e6, 4096,
         3.113923955392512e22),
    ],
    ids=["GPT", "BERT-Small", "BERT-Base", "BERT-Large", "RoBERTa-500K", "ALBERT-xxl"],
)  # fmt: skip
def test_masked_language_models(network: Transformer, steps: float, batch: int, expected: float) -> None:
    assert network.train(steps * batch) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("network", "steps", "batch", "expected"), [(LARGE, 464e3, 2048, 7.11668e20), (ROBERTA, 1e5, 8000, 6.37444e20)]
)
def test_those_printed_with_six_digits(network: Transformer, steps: float, batch: int, expected: float) -> None:
    assert float(f"{network.train(steps * batch):.5e}") == expected


@pytest.mark.parametrize(
    ("network", "generator", "steps", "batch", "expected"),
    [
        (SMALL, (64, 12), 1e6, 128, 1.293743798272e18),
        (BASE, (256, 12), 766e3, 256, 6.424541834277683e19),
        (LARGE, (256, 24), 400e3, 2048, 7.117606040895488e20),
        (LARGE, (256, 24), 1.75e6, 2048, 3.113952642891776e21),
    ],
    ids=["ELECTRA-Small", "ELECTRA-Base", "ELECTRA-400K", "ELECTRA-1.75M"],
)
def test_electra(network: Transformer, generator: tuple[int, int], steps: float, batch: int, expected: float) -> None:
    width, depth = generator
    found = train_electra(network, generator_hidden_size=width, generator_layers=depth, rows=steps * batch)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("network", "seq_len", "expected"),
    [(SMALL, 128, 3.677282e9), (BASE, 128, 2.861650e10), (LARGE, 128, 8.746567e10), (ROBERTA, 128, 9.264118e10),
     (SMALL, 512, 1.726975e10), (BASE, 512, 1.222989e11), (LARGE, 512, 3.703477e11)],
)  # fmt: skip
def test_inference(network: Transformer, seq_len: int, expected: float) -> None:
    shorter = Transformer(
        hidden_size=network.hidden_size,
        num_layers=network.num_layers,
        seq_len=seq_len,
        vocab_size=network.vocab_size,
        embedding_size=network.embedding_size,
    )
    assert float(f"{shorter.infer():.6e}") == expected


def test_the_arms_of_a_recipe_are_the_networks_of_the_paper() -> None:
    """ELECTRA-Small with a quarter of the width, and BERT-Small, as the settings of a recipe say them."""
    small = EncoderConfig(
        embedding_size=128, hidden_size=256, num_layers=12, num_heads=4, intermediate_size=1024, max_positions=512,
        vocab_size=30_522,
    )  # fmt: skip
    electra = train_arm(ElectraArm(learning_rate=5e-4), small, seq_len=128, rows=1e6 * 128)
    assert electra == pytest.approx(1.293743798272e18, rel=1e-12)
    bert = train_arm(BertArm(learning_rate=5e-4), small, seq_len=128, rows=1.45e6 * 128)
    assert bert == pytest.approx(1.4187399146496e18, rel=1e-12)
