"""Engine and checkpoint where not every parameter is trained, or belongs to one module: frozen and shared ones."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from data_prep.errors import CheckpointError
from data_prep.manifest import load
from data_prep.order import OrderConfig, order_of
from data_prep.reader import RowReader
from tests.training.runs import CPU, ELECTRA, MODEL, assert_equal, save, spec_for
from tests.training.synthetic import SEQ_LEN, SPECIAL, VOCAB
from training import checkpoints
from training.arms import ElectraArm, FrozenGenerator, NetworkGenerator
from training.checkpoints import Progress
from training.engine import STATES, Engine, build_engine
from training.loader import Loader
from training.objectives import Objective, build, to_device
from training.settings import OptimizerConfig, Placement, RunSpec

pytestmark = pytest.mark.usefixtures("process_group")

SMALLER = MODEL.model_copy(update={"hidden_size": 16, "num_heads": 1, "num_layers": 1})
ARMS = {
    "frozen": ElectraArm(learning_rate=5e-3, generator=FrozenGenerator(network=SMALLER)),
    "shared_body": ElectraArm(learning_rate=5e-3, generator=NetworkGenerator(width=1.0, tying="all")),
    "nothing_shared": ElectraArm(learning_rate=5e-3, generator=NetworkGenerator(width=1.0, tying="none")),
}


@contextmanager
def engine_for(arm: ElectraArm, seed: int, kind: str) -> Iterator[Engine]:
    torch.manual_seed(seed)
    objective = build(arm, MODEL.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=False)
    optimizer = OptimizerConfig.model_validate({"kind": kind})
    engine = build_engine(objective, optimizer, Placement(micro_batch=8), accumulation=1, device=CPU)
    yield engine
    engine.close()


def update(engine: Engine, corpus: Path, step: int) -> None:
    """One step of eight rows, the same for every engine."""
    manifest = load(corpus)
    order = order_of(manifest, "train", 0, OrderConfig())
    reader = RowReader(corpus, "train", manifest)
    loader = Loader(reader, engine.objective, SPECIAL, order, global_batch=8, micro_batch=8)
    batches = loader.step_at(8 * step)
    torch.manual_seed(step)
    outputs = engine.forward(to_device(batches.micro_batches[0], CPU))
    terms = engine.objective.loss_terms()
    engine.backward(torch.stack([t.weight * outputs.sums[t.name] / batches.loss_counts[t.count] for t in terms]).sum())
    engine.step(5e-3)


def parameters(objective: Objective) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in objective.named_parameters()}


def spec_of(arm: ElectraArm, corpus: Path) -> RunSpec:
    spec = spec_for(ELECTRA, corpus)
    return spec.model_copy(update={"identity": spec.identity.model_copy(update={"arm": arm})})


@pytest.mark.parametrize("kind", ["reference_adam", "adamw"])
@pytest.mark.parametrize("name", ARMS)
def test_saved_and_restored_everything_goes_on_as_before(name: str, kind: str, corpus: Path, tmp_path: Path) -> None:
    arm = ARMS[name]
    with engine_for(arm, 0, kind) as engine, engine_for(arm, 1, kind) as other:
        begun = parameters(engine.objective)
        for step in range(3):
            update(engine, corpus, step)
        trained = parameters(engine.objective)
        frozen = {parameter for parameter in trained if name == "frozen" and parameter.startswith("generator.")}
        assert {parameter for parameter in trained if torch.equal(trained[parameter], begun[parameter])} == frozen

        folder = save(engine, spec_of(arm, corpus), SPECIAL, Progress(step=3), tmp_path)
        found = checkpoints.verify(folder)
        assert set(found.manifest["frozen"]) == frozen
        tensors = checkpoints.load_tensors(found, ("param", *STATES))
        assert_equal(tensors["param"], trained)
        assert all(tensors[state].keys() == trained.keys() - frozen for state in STATES)

        checkpoints.restore(other, found)
        assert_equal(parameters(other.objective), trained)
        for step in (3, 4):
            update(engine, corpus, step)
            update(other, corpus, step)
        assert_equal(parameters(other.objective), parameters(engine.objective))

    objective, _ = checkpoints.load_objective(folder)
    assert_equal(parameters(objective), trained)


def test_names_that_do_not_fit_are_refused(corpus: Path, tmp_path: Path) -> None:
    arm = ARMS["nothing_shared"]
    with engine_for(arm, 0, "reference_adam") as engine:
        folder = save(engine, spec_of(arm, corpus), SPECIAL, Progress(), tmp_path)
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())

    more = json.loads(path.read_text())
    more["spec"]["identity"]["arm"]["generator"]["tying"] = "token"  # the network has fewer parameters than were saved
    path.write_text(json.dumps(more))
    with pytest.raises(CheckpointError, match=r"generator\.embeddings\.norm\.bias does not fit the network"):
        checkpoints.load_objective(folder)

    fewer = dict(whole["shapes"])
    del fewer["discriminator_head.out.bias"]
    path.write_text(json.dumps({**whole, "shapes": fewer}))
    with pytest.raises(CheckpointError, match=r"does not list param/discriminator_head\.out\.bias@0"):
        checkpoints.load_objective(folder)
