"""The paper's ledger gives the figures the original script prints, to the last digit, and for the arms that the paper
has no figure for what arithmetic in the script's manner gives."""

from dataclasses import replace

import pytest

from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    BertArm,
    Electra15Arm,
    ElectraAdversarialArm,
    ElectraArm,
    ElectraTwoStageArm,
    FrozenGenerator,
    MlmArm,
    NetworkGenerator,
    ReplaceMlmArm,
    RobertaArm,
    UniformGenerator,
)
from training.paper_flops import COUNTED_BY_TENSORFLOW, Transformer, train_arm
from training.sizes import EncoderConfig, ModelConfig

SMALL = Transformer(hidden_size=256, num_layers=12, seq_len=128, embedding_size=128)
BASE = Transformer(hidden_size=768, num_layers=12, seq_len=512)
LARGE = Transformer(hidden_size=1024, num_layers=24, seq_len=512)
GPT = Transformer(hidden_size=768, num_layers=12, seq_len=512, vocab_size=40_000, output_fraction=1.0)
ROBERTA = Transformer(hidden_size=1024, num_layers=24, seq_len=512, vocab_size=50_265)
ALBERT = Transformer(hidden_size=4096, num_layers=12, seq_len=512, vocab_size=30_000, embedding_size=128)
T5_ENCODER = Transformer(
    hidden_size=1024, num_layers=24, seq_len=512, vocab_size=32_000, feed_forward_size=65_536, num_heads=128,
    head_size=128, output_fraction=0.0,
)  # fmt: skip
T5_DECODER = replace(T5_ENCODER, decoder=True, output_fraction=1.0)


def beside_generator(discriminator: Transformer, hidden_size: int, rows: float) -> float:
    """ELECTRA with a generator as deep as the discriminator, which shares its embeddings."""
    shared = discriminator.embedding_size or discriminator.hidden_size
    generator = replace(discriminator, hidden_size=hidden_size, embedding_size=shared)
    return discriminator.train_discriminator(rows) + generator.train(rows)


@pytest.mark.parametrize(
    ("found", "printed"),
    [
        (COUNTED_BY_TENSORFLOW["ELMo"], 3.4114394716164127e18),
        (GPT.train(960_800 * 128), 3.968752230785352e19),
        (SMALL.train(1.45e6 * 128), 1.4187399146496e18),
        (BASE.train(1e6 * 256), 6.428335104e19),
        (LARGE.train(1e6 * 256), 1.91720905883648e20),
        (COUNTED_BY_TENSORFLOW["XLNet"], 3.856582065028608e21),
        (ROBERTA.train(5e5 * 8000), 3.187221435776e21),
        (beside_generator(SMALL, 64, 1e6 * 128), 1.293743798272e18),
        (beside_generator(BASE, 256, 766e3 * 256), 6.424541834277683e19),
        (beside_generator(LARGE, 256, 400e3 * 2048), 7.117606040895488e20),
        (beside_generator(LARGE, 256, 1.75e6 * 2048), 3.113952642891776e21),
        (ALBERT.train(1.5e6 * 4096), 3.113923955392512e22),
        (T5_ENCODER.train(1e6 * 2048) + T5_DECODER.train(1e6 * 2048), 4.581900124212429e22),
    ],
    ids=[
        "ELMo", "GPT", "BERT-Small", "BERT-Base", "BERT-Large", "XLNet", "RoBERTa-500K", "ELECTRA-Small",
        "ELECTRA-Base", "ELECTRA-400K", "ELECTRA-1.75M", "ALBERT-xxl", "T5-11B",
    ],
)  # fmt: skip
def test_training_to_the_last_digit_of_a_double(found: float, printed: float) -> None:
    assert found == printed


@pytest.mark.parametrize(
    ("found", "printed"),
    [
        (LARGE.train(464e3 * 2048), "7.11668e+20"),
        (ROBERTA.train(1e5 * 8000), "6.37444e+20"),
        (beside_generator(BASE, 256, 4e6 * 256), "3.35485e+20"),
        (beside_generator(replace(LARGE, output_fraction=0.25), 256, 400e3 * 2048), "7.16736e+20"),
    ],
    ids=["BERT-Large (ours)", "RoBERTa-100K", "ELECTRA-Base++", "ELECTRA-400K at 25 %"],
)
def test_training_to_six_digits(found: float, printed: str) -> None:
    assert f"{found:.5e}" == printed


@pytest.mark.parametrize(
    ("network", "seq_len", "printed"),
    [
        (GPT, 128, "3.047995e+10"), (SMALL, 128, "3.677282e+09"), (BASE, 128, "2.861650e+10"),
        (LARGE, 128, "8.746567e+10"), (ROBERTA, 128, "9.264118e+10"), (ALBERT, 128, "6.275976e+11"),
        (SMALL, 512, "1.726975e+10"), (BASE, 512, "1.222989e+11"), (LARGE, 512, "3.703477e+11"),
        (ALBERT, 512, "2.550606e+12"),
    ],
)  # fmt: skip
def test_inference(network: Transformer, seq_len: int, printed: str) -> None:
    assert f"{replace(network, seq_len=seq_len).infer():.6e}" == printed


@pytest.mark.parametrize(
    ("arm", "size", "seq_len", "rows", "printed"),
    [
        (ElectraArm(learning_rate=5e-4), "small", 128, 1e6 * 128, 1.293743798272e18),
        (ElectraArm(learning_rate=2e-4, generator=NetworkGenerator(width=1 / 3)), "base", 512, 766e3 * 256,
         6.424541834277683e19),
        (ElectraArm(learning_rate=2e-4, mask_prob=0.25), "large", 512, 400e3 * 2048, 7.117606040895488e20),
        (BertArm(learning_rate=5e-4), "small", 128, 1.45e6 * 128, 1.4187399146496e18),
    ],
    ids=["ELECTRA-Small", "ELECTRA-Base", "ELECTRA-400K", "BERT-Small"],
)  # fmt: skip
def test_the_arms_of_a_recipe_are_the_networks_of_the_paper(
    arm: ArmConfig, size: str, seq_len: int, rows: float, printed: float
) -> None:
    model = ModelConfig.model_validate({"size": size}).encoder(30_522)
    assert train_arm(arm, model, seq_len, rows) == printed


# An arm of every kind on one odd size, by arithmetic: E 48, D 192 (3 heads of 64), 4 layers, 32 positions, 100 words.
MODEL = EncoderConfig(
    embedding_size=48, hidden_size=192, num_layers=4, num_heads=6, intermediate_size=100, max_positions=32,
    vocab_size=100,
)  # fmt: skip
SEQ_LEN, ROWS = 32, 10

# A token in a layer of width D: its matrices 24·D², its two products with 32 positions 4·D·32, softmax, dropout and
# scale 10·32 a head; then 3 biases of D, 1 + 4 + 1 of D after the attention and its 5, 9·4·D at the activation, and
# 1 + 4 + 1 + 5 of D after the feed-forward: 56·D + 5.
# An input: 2·E·100 words, 2·E·34 positions and types, 11·E, and 2·D·E + D where D ≠ E.
# A masked position: 2·D·E, 14·E, 2·E·100 and 7·100. A binary one: 2·D² + 11·D.
MAIN = 4 * (24 * 192**2 + 128 * 192 + 320 * 3 + 56 * 192 + 5) + 48 * (200 + 68 + 11) + 2 * 192 * 48 + 192
WIDE_LAYERS = 2 * (24 * 96**2 + 128 * 96 + 320 * 1 + 56 * 96 + 5)  # half as wide and deep: one head, of 64 or not
SHARED = WIDE_LAYERS + 48 * (200 + 68 + 11) + 2 * 96 * 48 + 96  # with the embeddings of the main network
UNTIED = WIDE_LAYERS + 96 * (200 + 68 + 11)  # with its own, as wide as itself: no projection
NARROW = 3 * (24 * 32**2 + 128 * 32 + 320 * 1 + 56 * 32 + 5) + 16 * (200 + 68 + 11) + 2 * 32 * 16 + 32


def vocabulary(D: int, E: int) -> int:
    return 2 * D * E + 14 * E + 2 * E * 100 + 700


SHARE = 0.15625
BINARY = 2 * 192**2 + 11 * 192
DETECTION = 2 * (MAIN + BINARY)
MASKED = 2 * (MAIN + SHARE * vocabulary(192, 48))
EVERYWHERE = 2 * (MAIN + vocabulary(192, 48) + BINARY)
GENERATOR = 2 * (SHARED + SHARE * vocabulary(96, 48))
TRAINED = NetworkGenerator(width=0.5, depth=0.5)
FROZEN = FrozenGenerator(
    network=ModelConfig(embedding_size=16, hidden_size=32, num_layers=3, num_heads=2, intermediate_size=64)
)


@pytest.mark.parametrize(
    ("arm", "a_token"),
    [
        (ElectraArm(learning_rate=1e-4, generator=TRAINED), DETECTION + GENERATOR),
        (ElectraArm(learning_rate=1e-4, generator=TRAINED, mask_prob=0.4), DETECTION + GENERATOR),
        (ElectraArm(learning_rate=1e-4, generator=TRAINED.model_copy(update={"tying": "none"})),
         DETECTION + 2 * (UNTIED + SHARE * vocabulary(96, 96))),
        (ElectraArm(learning_rate=1e-4, generator=NetworkGenerator(width=1.0, tying="all")), DETECTION + MASKED),
        (ElectraArm(learning_rate=1e-4, generator=UniformGenerator()), DETECTION),
        (ElectraArm(learning_rate=1e-4, generator=FROZEN), DETECTION + NARROW + SHARE * vocabulary(32, 16)),
        (Electra15Arm(learning_rate=1e-4, generator=TRAINED), DETECTION + GENERATOR),
        (ElectraAdversarialArm(learning_rate=1e-4, generator=TRAINED), DETECTION + GENERATOR),
        (ElectraTwoStageArm(learning_rate=1e-4), DETECTION + MASKED / 2),
        (ReplaceMlmArm(learning_rate=1e-4, generator=TRAINED), MASKED + GENERATOR),
        (AllTokensMlmArm(learning_rate=1e-4, generator=TRAINED), EVERYWHERE + GENERATOR),
        (AllTokensMlmArm(learning_rate=1e-4, generator=UniformGenerator()), EVERYWHERE),
        (MlmArm(learning_rate=1e-4), MASKED),
        (BertArm(learning_rate=1e-4), MASKED),
        (RobertaArm(learning_rate=1e-4), MASKED),
    ],
    ids=[
        "electra", "electra, 40 % masked", "electra, untied", "electra, one body", "electra, by chance",
        "electra, frozen", "electra_15", "electra_adversarial", "electra_two_stage", "replace_mlm", "all_tokens_mlm",
        "all_tokens_mlm, by chance", "mlm", "bert", "roberta",
    ],
)  # fmt: skip
def test_every_arm_by_arithmetic(arm: ArmConfig, a_token: float) -> None:
    assert train_arm(arm, MODEL, SEQ_LEN, ROWS) == ROWS * SEQ_LEN * a_token
