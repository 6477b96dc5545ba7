"""Runs with a checkpoint of large random weights, on a corpus of a few rows with a tokenizer of either kind.

Weights are large so that a swapped or forgotten tensor cannot hide; nothing is trained.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import yaml

from data_prep import manifest as manifests
from data_prep import storage
from data_prep import tokenizer as tokenizers
from data_prep.manifest import Manifest
from data_prep.shards import row_stats
from data_prep.tokenizer import Tokenizer
from tests.conftest import TOPICS
from tests.shard_files import write_rows
from tests.training import synthetic
from tests.training.hf_models import randomise
from tests.training.runs import CPU
from training import run_folder
from training.arms import ArmConfig
from training.checkpoints import Progress, Saver
from training.engine import build_engine
from training.objectives import Objective, build
from training.run import plan_run
from training.settings import OptimizerConfig, RunSpec, TrainingConfig
from training.sizes import ModelConfig

VOCAB, SEQ_LEN, POSITIONS = 300, 32, 40
TINY = ModelConfig(
    embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48, max_positions=POSITIONS
)
PLACEMENT = {"global_batch": 4, "micro_batch": 4, "engine": "ddp", "checkpoints": {"keep_last": 99}}
SENTENCES = [
    f"{('The', 'Ä', '“No')[n % 3]} {noun} and the {other}, número {n}, didn't meet at the pier."
    for nouns in TOPICS.values()
    for n, (noun, other) in enumerate(pairwise(nouns))
]


def write_corpus(folder: Path, kind: str = "wordpiece") -> Manifest:
    """Pairs of sentences in rows, and the tokenizer, trained on them, of either kind."""
    config = {"kind": kind, "vocab_size": VOCAB, "lowercase": kind == "wordpiece"}
    words = tokenizers.train(SENTENCES, tokenizers.TokenizerConfig.model_validate(config))
    base = synthetic.write_corpus(folder, sources=[(12, 1)])
    sha256 = words.save(folder / "tokenizer")
    for split in ("train", "heldout"):
        for path in (folder / split).iterdir():
            path.unlink()
    splits = {}
    for split, rows in (("train", _rows(words)), ("heldout", _rows(words)[::2])):
        shards = write_rows(folder, split, 0, rows, rows_per_shard=99, vocab_size=words.vocab_size)  # type: ignore[arg-type]
        splits[split] = row_stats(rows, words.special).model_copy(update={"shards": shards})
    source = base.sources[0].model_copy(
        update={name: stats.model_copy(update={"shards": []}) for name, stats in splits.items()}
    )
    manifest = base.model_copy(
        update={
            **{"tokenizer_sha256": sha256, "vocab_size": words.vocab_size, "special": words.special},
            **{"pair_separators": words.pair_separators, "sources": [source], **splits},
        }
    )
    manifests.save(manifest, folder)
    return manifest


def _rows(words: Tokenizer) -> np.ndarray:
    special, found = words.special, []
    for first, second in zip(SENTENCES, SENTENCES[3:], strict=False):
        one, two = words.encode([first, second])
        between = [special.sep] * words.pair_separators
        row = [special.cls, *one[:12], *between, *two[:12], special.sep]
        found.append(row + [special.pad] * (SEQ_LEN - len(row)))
    return np.array(found, dtype=np.int64)


def experiment(out: Path, kind: str = "wordpiece") -> Path:
    """The folder of an experiment that has no run yet."""
    write_corpus(out / "corpus", kind)
    config = {
        "name": "tiny",
        "corpus": {"sources": [{"kind": "jsonl", "path": "elsewhere/tiny.jsonl"}], "seq_len": SEQ_LEN},
        "model": TINY.model_dump(mode="json"),
        "training": PLACEMENT,
        "arms": [{"objective": "electra", "learning_rate": 1e-3}],
        "budgets": [1e12],
        "cluster": {},
        "evaluation": {},
    }
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    return out


def begun_run(
    out: Path,
    arm: ArmConfig,
    model: ModelConfig = TINY,
    *,
    steps: tuple[int, ...] = (3,),
    change: Callable[[Objective], None] = lambda _: None,
) -> Path:
    """A run of the experiment that was interrupted after its checkpoints of these steps, each of other weights, with a
    `change` to them. Needs the process group."""
    manifest = manifests.load(out / "corpus")
    training = TrainingConfig.model_validate(PLACEMENT)
    spec = plan_run(arm=arm, model=model, training=training, manifest=manifest, budget=1e12, seed=0)
    run_dir = out / "runs" / f"{arm.label}-1.00e+12-s0"
    run_folder.write_run_record(storage.make_folder(run_dir), spec)
    for step in steps:
        _save_weights(run_dir, spec, manifest, step, change)
    return run_dir


def _save_weights(
    run_dir: Path, spec: RunSpec, manifest: Manifest, step: int, change: Callable[[Objective], None]
) -> None:
    identity = spec.identity
    objective = build(
        identity.arm, identity.model, manifest.special, seq_len=identity.seq_len, packed=manifest.layout == "packed"
    )
    randomise(objective, 7 + step)
    with torch.no_grad():
        change(objective)
    engine = build_engine(objective, OptimizerConfig(), spec.placement, accumulation=1, device=CPU)
    saver = Saver(run_folder.store_of(run_dir), engine, spec, manifest.special, manifest.layout == "packed", None)
    saver.start(Progress(step=step, tokens=100 * step, seconds=1.0), heldout_loss=None, next_rows="")
    outcome = saver.settle()
    engine.close()
    assert outcome.saved, outcome.reason
