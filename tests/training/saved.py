"""What tests of checkpoints share: a small engine whose state says what it is, and savings of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from data_prep import storage
from data_prep.storage import Folder
from tests.training.runs import CPU, ELECTRA, MODEL, spec_for
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB
from training.checkpoints import Checkpoint, Outcome, Progress, Saver, load_tensors, verify
from training.engine import STATES, Engine, build_engine
from training.objectives import build
from training.settings import OptimizerConfig, Placement, RunSpec
from training.sizes import ModelConfig


@contextmanager
def engine(
    *, kind: str = "reference_adam", model: ModelConfig = MODEL, placement: Placement | None = None
) -> Iterator[Engine]:
    """A plain-DDP engine, where nothing else is said, of a network with random weights."""
    objective = build(ELECTRA, model.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=False)
    optimizer = OptimizerConfig.model_validate({"kind": kind})
    placement = placement or Placement(micro_batch=8, engine="ddp")
    built = build_engine(objective, optimizer, placement, accumulation=1, device=CPU)
    yield built
    built.close()


def fill(engine: Engine, value: float) -> None:
    """Give parameters and states values that tell savings and kinds apart."""
    with torch.no_grad():
        for piece in engine.held():
            for number, tensor in enumerate(piece.tensors.values()):
                tensor.fill_(value + number / 4)


def values(checkpoint: Checkpoint) -> set[float]:
    """All that a checkpoint holds."""
    return {
        float(v)
        for named in load_tensors(checkpoint, ("param", *STATES)).values()
        for t in named.values()
        for v in t.unique()
    }


def saver(
    store: Folder,
    engine: Engine,
    corpus: Path,
    *,
    while_writing: Callable[[int], None] = lambda step: None,
    **checkpoints: object,
) -> Saver:
    spec = spec_for(ELECTRA, corpus, checkpoints={"keep_last": 99, **checkpoints})
    return Saver(store, engine, spec, SPECIAL, False, None, while_writing=while_writing)


def take(saver: Saver, step: int, heldout_loss: float | None = None) -> Outcome:
    """Save the engine's state as that of a step, and wait."""
    saver.start(Progress(step=step, tokens=10 * step), heldout_loss=heldout_loss, next_rows=f"rows {step}")
    return saver.settle()


def spec(corpus: Path, steps: int = 24, save_at: tuple[int, ...] = (), **checkpoints: object) -> RunSpec:
    made = spec_for(ELECTRA, corpus, steps=steps, checkpoints=checkpoints)
    return made.model_copy(update={"placement": made.placement.model_copy(update={"save_at": list(save_at)})})


def at(store: Folder, step: int) -> Checkpoint:
    return verify(store.sub(f"step-{step:08d}"))


def local(path: Path) -> Folder:
    return storage.folder(path / "checkpoints")
