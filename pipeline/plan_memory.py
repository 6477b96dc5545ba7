"""What a GPU holds while it trains, by ZeRO stage, micro-batch and activation checkpointing. An upper estimate.

Model: fp32 weights, the optimizer's own fp32 copy of its part (stages 1 to 3), gradients, and Adam's two states, as
`training.engine` keeps them (a test compares all but gradients with what it holds). Stage 3 gathers up to
`GATHERED` parameters at a time, by DeepSpeed's defaults, so below that size it saves optimizer state and gradients and
no weights at the moment that counts.

Activations: what autograd saves of every layer, a closed form that a test holds to PyTorch's own saved tensors for the
reference and the sdpa attention; then the embeddings, the detection head, and the logits over the vocabulary, of which
the loss keeps its own copy and makes another going back. Buffers: communication buckets, and the bf16 copy of weights
that autocast makes. What the CUDA context, NCCL, kernels' workspaces and fragmentation take is `RESERVE` and
`FRAGMENTED`, which are experience and no formula.
"""

from dataclasses import dataclass

from pipeline.plan_size import Size, sizes
from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    DetectionArm,
    ElectraTwoStageArm,
    FrozenGenerator,
    NetworkGenerator,
)
from training.flops import trained_generator
from training.sizes import EncoderConfig

FP32, BF16 = 4, 2
BUCKET = 2**26  # elements: training.engine.zero's reduce bucket
GATHERED = 10**9  # parameters: DeepSpeed's stage3_max_live_parameters
RESERVE = 2 * 2**30
FRAGMENTED = 0.05  # of activations and buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What of a run decides what a GPU holds. `attention` is a back-end that serves, not `auto`."""

    stage: int  # 0 of plain DDP too
    gpus: int
    micro_batch: int
    checkpointing: bool
    attention: str
    bf16: bool
    packed: bool
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one GPU."""

    weights: float
    master: float  # the optimizer's own fp32 parameters
    states: float
    gradients: float
    buffers: float
    activations: float
    logits: float

    @property
    def model(self) -> float:
        """What does not go by the micro-batch."""
        return self.weights + self.master + self.states + self.gradients + self.buffers

    @property
    def total(self) -> float:
        """With what is held in reserve."""
        moving = self.buffers + self.activations + self.logits
        return self.model + self.activations + self.logits + FRAGMENTED * moving + RESERVE


def memory(arm: ArmConfig, model: EncoderConfig, setting: Setting) -> Memory:
    """Of one GPU at the peak of a step, which is at the beginning of the backward pass."""
    networks = list(sizes(arm, model).values())
    weights, master, states, gradients = held(networks, setting.stage, setting.gpus)
    return Memory(
        weights=weights,
        master=master,
        states=states,
        gradients=gradients,
        buffers=_buffers(networks, setting),
        activations=sum(_network(config, setting, trained) for config, trained in bodies(arm, model))
        + _detection(arm, model, setting),
        logits=_logits(arm, model, setting),
    )


def held(networks: list[Size], stage: int, gpus: int) -> tuple[float, float, float, float]:
    """Bytes of weights, of the optimizer's copy, of its states and of gradients, on one of so many GPUs."""
    total, trained = sum(one.total for one in networks), sum(one.trained for one in networks)
    if stage == 0:
        return FP32 * total, 0, 2 * FP32 * trained, FP32 * trained
    part = trained / gpus
    gathered = max(total / gpus, min(total, GATHERED)) if stage == 3 else total
    weights = FP32 * (gathered + (total / gpus if stage == 3 and gpus > 1 else 0))
    return weights, FP32 * part, 2 * FP32 * part, FP32 * (trained + part if stage == 1 else part)


def _buffers(networks: list[Size], setting: Setting) -> float:
    copies = BF16 * sum(one.linear for one in networks) if setting.bf16 else 0
    if setting.stage == 0:
        return copies
    bucket = min(BUCKET, sum(one.trained for one in networks))
    return copies + FP32 * bucket * (2 if setting.gpus > 1 else 1)


def bodies(arm: ArmConfig, model: EncoderConfig) -> list[tuple[EncoderConfig, bool]]:
    """The encoders that run in a step, and whether each keeps anything for a backward pass."""
    generator = getattr(arm, "generator", None)
    if isinstance(generator, NetworkGenerator):
        return [(model, True), (trained_generator(generator, model), True)]
    if isinstance(generator, FrozenGenerator) and generator.network is not None:
        return [(model, True), (generator.network.encoder(model.vocab_size), False)]
    if isinstance(arm, ElectraTwoStageArm):
        return [(model, True), (model, False)]
    return [(model, True)]


def _network(config: EncoderConfig, setting: Setting, trained: bool) -> float:
    """Embeddings and layers of one network; one that is not trained keeps a layer at a time."""
    one = layer(config, setting)
    if not trained:
        return one
    tokens = setting.micro_batch * setting.seq_len
    embedded = tokens * config.embedding_size * (FP32 + (1 if config.dropout else 0)) + 2 * FP32 * tokens
    if not setting.checkpointing:
        return embedded + config.num_layers * one
    return embedded + config.num_layers * tokens * config.hidden_size * FP32 + one


def layer(config: EncoderConfig, setting: Setting) -> float:
    """Bytes that autograd saves of one layer, N tokens of width D and feed-forward F at w bytes an element.

    w·N·(6D + 2F): the input of every matmul, and of GELU. 8·N·D: both sums before a LayerNorm, in fp32; 16·N: their
    statistics. N·D for each of two dropouts. Of attention, by the back-end: reference keeps the softmax, w·N·L·H (in
    bf16 an fp32 one too), with its dropout twice and a mask; the others keep one number a token and head. A mask of
    packed rows is B·L².
    """
    D, F, H = config.hidden_size, config.intermediate_size, config.num_heads
    B, L = setting.micro_batch, setting.seq_len
    N, w = B * L, BF16 if setting.bf16 else FP32
    kept = w * N * (6 * D + 2 * F) + 2 * FP32 * N * D + 4 * FP32 * N + (2 * N * D if config.dropout else 0)
    if setting.attention != "reference":
        mask = w * B * L * L if setting.packed and setting.attention == "sdpa" else 0
        return kept + FP32 * N * H + mask
    softmax = FP32 * N * L * H + (w * N * L * H if setting.bf16 else 0)
    dropped = (1 + w) * N * L * H if config.attention_dropout else 0
    return kept + softmax + dropped + (B * L * L if setting.packed else 0)


def _detection(arm: ArmConfig, model: EncoderConfig, setting: Setting) -> float:
    """The dense layer over every token and its GELU, whose result is fp32."""
    if not isinstance(arm, DetectionArm):
        return 0
    w = BF16 if setting.bf16 else FP32
    return setting.micro_batch * setting.seq_len * model.hidden_size * (2 * w + FP32)


def _logits(arm: ArmConfig, model: EncoderConfig, setting: Setting) -> float:
    """Over the vocabulary, at the slots of every masked head: as the matmul gives them, as the loss keeps them, and
    their gradient. In bf16 the loss makes an fp32 copy first."""
    w = BF16 if setting.bf16 else 0
    slots = arm.max_predictions(setting.seq_len)
    generator = getattr(arm, "generator", None)
    heads = [slots] if isinstance(generator, NetworkGenerator | FrozenGenerator) else []
    if isinstance(arm, AllTokensMlmArm):
        heads.append(setting.seq_len)
    elif isinstance(arm, ElectraTwoStageArm) or not isinstance(arm, DetectionArm):
        heads.append(slots)
    return setting.micro_batch * sum(heads) * model.vocab_size * (w + 3 * FP32)
