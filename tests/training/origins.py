"""What tests of first weights share: small runs to begin with, Hugging Face folders, and what networks then hold."""

from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from data_prep import storage
from data_prep.manifest import load
from tests.training.runs import CPU
from tests.training.synthetic import MODEL, SPECIAL, VOCAB
from training import checkpoints, origin
from training.arms import ArmConfig, ElectraArm, NetworkGenerator
from training.checkpoints import Progress
from training.encoder import Embeddings, Encoder
from training.heads import MaskedTokenHead, ReplacedTokenHead
from training.hf_names import ARCHITECTURES, names
from training.loop import train
from training.network import Network
from training.objectives import Objective, build
from training.run import plan_runs
from training.settings import CheckpointConfig, RunSpec, TrainingConfig
from training.sizes import EncoderConfig, ModelConfig

RATE = 2e-3
ENCODER = MODEL.encoder(VOCAB)
GENERATOR = NetworkGenerator(width=0.5)
ELECTRA = ElectraArm(learning_rate=RATE, generator=GENERATOR)


def plan(arm: ArmConfig, corpus: Path, model: ModelConfig = MODEL, seed: int = 0, **options: object) -> list[RunSpec]:
    length = {"steps": 4} if options.keys().isdisjoint({"steps", "budget"}) else {}
    checkpoints = CheckpointConfig(every=2, keep_last=99)
    training = TrainingConfig(global_batch=12, micro_batch=12, log_every=2, eval_rows=12, checkpoints=checkpoints)
    known = {"training": training, "manifest": load(corpus), "corpus_dir": corpus, **length, **options}
    return plan_runs(arm=arm, model=model, seed=seed, **known)  # type: ignore[arg-type]


def trained(specs: list[RunSpec], corpus: Path, runs: Path) -> list[Path]:
    """Train runs one after another; their folders."""
    for spec in specs:
        train(spec, corpus, runs / spec.name, CPU)
    return [runs / spec.name for spec in specs]


def run_of(experiment: Path, label: str) -> Path:
    (found,) = experiment.glob(f"runs/{label}-*")
    return found


def objective_of(spec: RunSpec) -> Objective:
    """As the loop builds it, with other random values than any trained run of these tests began with."""
    torch.manual_seed(99)
    identity = spec.identity
    return build(identity.arm, identity.model, SPECIAL, seq_len=identity.seq_len, packed=False)


def tensors_of(network: Network) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in network.parameters().items()}


def network_at(run_dir: Path, name: str, step: int = 4) -> dict[str, torch.Tensor]:
    objective, _ = checkpoints.load_objective(run_dir / "checkpoints" / f"step-{step:08d}")
    return tensors_of(objective.networks()[name])


def assert_filled(network: Network, tensors: dict[str, torch.Tensor], *, but: str = "nothing") -> None:
    """Bit for bit what `tensors` holds, except a part that they are known to lack."""
    for name, parameter in network.parameters().items():
        if not name.startswith(but):
            assert torch.equal(parameter, tensors[name]), name


def hugging_face(folder: Path, architecture: str, config: EncoderConfig = ENCODER, seed: int = 5) -> Network:
    """Write an ELECTRA folder as transformers' save_pretrained does; the network it holds."""
    torch.manual_seed(seed)
    heads = {"mlm": MaskedTokenHead, "rtd": ReplacedTokenHead}
    known = ARCHITECTURES[architecture]
    network = Network(config, Embeddings(config), Encoder(config), {head: heads[head](config) for head in known.heads})
    parameters = network.parameters()
    stored = {
        theirs: piece.detach().clone()
        for ours, parts in names("electra", config, known.heads).items()
        for theirs, piece in zip(parts, parameters[ours].chunk(len(parts)), strict=True)
    }
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    sizes = {
        "architectures": [architecture],
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_positions,
        "layer_norm_eps": config.layer_norm_eps,
    }
    storage.write_json(folder / "config.json", sizes)
    return network


def stored(folder: Path, like: Path, run: str, progress: Progress, **spec: object) -> Path:
    """The manifest of a checkpoint that a run called `run` might have left, with the specification of the checkpoint
    `like`; no tensors."""
    manifest = storage.read_json(like / checkpoints.MANIFEST)
    changed = {"identity": run, "progress": asdict(progress), "spec": {**manifest["spec"], **spec}}
    folder.mkdir(parents=True)
    storage.write_json(folder / checkpoints.MANIFEST, {**manifest, **changed})
    return folder


def find(path: Path, label: str = "bert", objective: str = "bert", seed: int = 0) -> origin.Origin:
    return origin.find(path, label=label, objective=objective, seed=seed)
