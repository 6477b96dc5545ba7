"""Speed of one ELECTRA-Small step (32 × 128 tokens, dropout .1): `python -m tests.benchmarks.train_step [THREADS]`.

Ours beside what people would use instead, in turns within the same minutes: Hugging Face's `ElectraForMaskedLM` and
`ElectraForPreTraining` with shared embeddings, the generator's logits at every position (as its users write it) or at
the masked positions only, sampling by Gumbel noise, AdamW. Below, the matmuls of a step alone: the ceiling. Tokens are
those of one step by the CPU time of all threads, divided by the threads: a busy machine changes it less than the clock.
Memory is what two steps add at most to a process that has imported everything, each case in a process of its own.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from data_prep.rows import SpecialIds, structure
from training.arms import ElectraArm
from training.devices import memory_peak
from training.masking import RowKeys
from training.objectives import HostBatch, Objective, RowBatch, build, to_device
from training.optimizer import build_optimizer
from training.settings import OptimizerConfig
from training.sizes import ModelConfig

VOCAB, ROWS, LENGTH, ROUNDS = 30_522, 32, 128, 5
SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)
ARM = ElectraArm(learning_rate=5e-4)
CPU = torch.device("cpu")
Step = Callable[[], Any]


def prepared(objective: Objective, rows: int = ROWS, vocab: int = VOCAB) -> HostBatch:
    """A batch of full rows, of a pair of segments each."""
    stored = np.random.default_rng(0).integers(1000, vocab, (rows, LENGTH))
    stored[:, 0], stored[:, LENGTH // 2], stored[:, -1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
    index = np.arange(rows)
    return objective.prepare(RowBatch(stored, structure(stored, SPECIAL), RowKeys(0, index * 0, index), _no_partners))


def _no_partners(draws: np.ndarray) -> Any:
    raise AssertionError("ELECTRA exchanges no segments")


def _objective(dropout: float) -> Objective:
    torch.manual_seed(0)
    model = ModelConfig.model_validate({"size": "small", "dropout": dropout, "attention_dropout": dropout})
    return build(ARM, model.encoder(VOCAB), SPECIAL, seq_len=LENGTH, packed=False)


def ours(dropout: float) -> Step:
    """A step of ours."""
    objective = _objective(dropout)
    optimizer = build_optimizer(objective, OptimizerConfig())
    batch = to_device(prepared(objective), CPU)

    def loss() -> Tensor:
        outputs = objective(batch)
        parts = [t.weight * outputs.sums[t.name] / outputs.statistics[t.count] for t in objective.loss_terms()]
        return torch.stack(parts).sum()

    return _updating(objective, optimizer, loss)


def hugging_face(*, masked_only: bool) -> Step:
    """The same networks, losses and batch from transformers' models."""
    batch = to_device(prepared(_objective(0.0)), CPU)
    sizes = {"vocab_size": VOCAB, "embedding_size": 128, "num_hidden_layers": 12, "max_position_embeddings": 512}
    generator = ElectraForMaskedLM(ElectraConfig(**sizes, hidden_size=64, num_attention_heads=1, intermediate_size=256))
    discriminator = ElectraForPreTraining(
        ElectraConfig(**sizes, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    )
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    both = torch.nn.ModuleList([generator, discriminator])
    optimizer = torch.optim.AdamW(both.parameters(), lr=5e-4, eps=1e-6, weight_decay=0.01)
    position_BK, label_BK = batch["mask_positions"], batch["mask_labels"]
    real_BL = (batch["fragment"] > 0).long()
    inputs = {"attention_mask": real_BL, "token_type_ids": batch["types"]}
    label_BL = torch.full_like(batch["ids"], -100).scatter(1, position_BK, label_BK)

    def loss() -> Tensor:
        if masked_only:
            h_BLD = generator.electra(input_ids=batch["inputs"], **inputs).last_hidden_state
            h_BKD = h_BLD.gather(1, position_BK[:, :, None].expand(-1, -1, h_BLD.shape[-1]))
            logits_BKV = generator.generator_lm_head(generator.generator_predictions(h_BKD))
            mlm = F.cross_entropy(logits_BKV.flatten(0, 1), label_BK.flatten())
        else:
            logits_BLV = generator(input_ids=batch["inputs"], **inputs).logits
            mlm = F.cross_entropy(logits_BLV.flatten(0, 1), label_BL.flatten())
            logits_BKV = logits_BLV.gather(1, position_BK[:, :, None].expand(-1, -1, VOCAB))
        with torch.no_grad():
            noise_BKV = -torch.log(-torch.log(torch.rand_like(logits_BKV) + 1e-9) + 1e-9)
            sampled_BK = (logits_BKV + noise_BKV).argmax(-1)
        corrupted_BL = batch["ids"].scatter(1, position_BK, sampled_BK)
        scores_BL = discriminator(input_ids=corrupted_BL, **inputs).logits
        target_BL = (corrupted_BL != batch["ids"]).float()
        return mlm + 50 * F.binary_cross_entropy_with_logits(scores_BL, target_BL)

    return _updating(both, optimizer, loss)


def _updating(module: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Step:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()

    return step


def matmuls() -> Step:
    """The matmuls of a step's linear layers, forward and backward, on buffers of their own."""
    N, K = ROWS * LENGTH, ROWS * ARM.max_predictions(LENGTH)
    shapes = [(K, 64, 128, 1), (K, 128, VOCAB, 1), (N, 128, 64, 1), (N, 128, 256, 1), (N, 256, 256, 1)]
    for width, layers in ((64, 12), (256, 12)):
        shapes += [(N, width, 3 * width, layers), (N, width, width, layers)]
        shapes += [(N, width, 4 * width, layers), (N, 4 * width, width, layers)]
    buffers = [(torch.randn(n, i), torch.randn(o, i), torch.randn(n, o), times) for n, i, o, times in shapes]

    def step() -> None:
        for x, weight, gradient, times in buffers:
            for _ in range(times):
                F.linear(x, weight)
                gradient @ weight
                gradient.T @ x

    return step


CASES: dict[str, Callable[[], Step]] = {
    "ours, dropout .1": partial(ours, 0.1),
    "ours, no dropout": partial(ours, 0.0),
    "Hugging Face, logits everywhere": partial(hugging_face, masked_only=False),
    "Hugging Face, masked positions": partial(hugging_face, masked_only=True),
    "the matmuls alone": matmuls,
}


def memory(case: str) -> int:
    """In this process: bytes that two steps of a case add at most to what is held before."""
    before = memory_peak(CPU)
    step = CASES[case]()
    step()
    step()  # the first makes the optimizer's state, beside the second's activations
    return memory_peak(CPU) - before


def memory_apart(case: str, threads: int) -> int:
    """`memory` in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.train_step", str(threads), case]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def seconds_of_steps(threads: int) -> dict[str, float]:
    """CPU seconds of a step by thread, of every case: medians of rounds in which each has its turn."""
    steps = {name: make() for name, make in CASES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(ROUNDS):
        for name, step in steps.items():
            began = time.process_time()
            step()
            seconds[name].append((time.process_time() - began) / threads)
    return {name: statistics.median(found) for name, found in seconds.items()}


def main(threads: int) -> None:
    """Print a line a case."""
    memories = {name: memory_apart(name, threads) for name in CASES}
    seconds = seconds_of_steps(threads)
    mine = seconds["ours, dropout .1"]
    tokens = ROWS * LENGTH
    print(f"{threads} thread(s), {tokens} tokens a step, by CPU time, median of {ROUNDS}")
    for name, found in seconds.items():
        speed = f"{tokens / found:8.0f} tokens/s   ours, dropout .1: {found / mine:5.2f} x"
        print(f"{name:<34}{speed}   memory {memories[name] / 2**20:6.0f} MiB")


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    if len(sys.argv) > 2:
        print(memory(sys.argv[2]))
    else:
        main(torch.get_num_threads())
