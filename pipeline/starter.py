"""`electra init`: a commented experiment file to begin with.

What it writes loads as it is, is explained line by line, and needs no cluster; the numbers of a size are those of the
recipes in configs/.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import ConfigError, DataError
from pipeline import config as yaml_config
from pipeline.console import Console
from pipeline.experiment import Experiment
from training.sizes import SIZES

_KINDS = {".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".txt": "text"}
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What goes with a size."""

    vocabulary: int
    batch: int
    rates: tuple[float, float]  # of electra, and of bert and roberta
    budgets: tuple[float, float]  # model FLOPs


# Batches and rates: configs/quickstart.yaml, electra-*.yaml and bert-*.yaml, which name their sources. Budgets: a
# beginning, of minutes with tiny; `electra plan` says what they take.
_OF_SIZE = {
    "tiny": _Numbers(8192, 16, (5e-4, 1e-3), (8e11, 2.4e12)),
    "small": _Numbers(30522, 128, (5e-4, 5e-4), (7.5e16, 3e17)),
    "base": _Numbers(30522, 256, (2e-4, 1e-4), (3e18, 1.2e19)),
    "large": _Numbers(30522, 2048, (2e-4, 1e-4), (5e19, 2e20)),
}

# What is before " # " is the file's, the rest its comment, set apart by `_aligned`.
_TEXT = """\
# An experiment: every arm is trained at every budget on the same rows in the same order, and evaluated alike.
# `electra config show FILE` prints what is not set here, `electra config validate FILE` finds mistakes,
# `electra plan FILE` says what it will take, `electra experiment run FILE` does all of it.
name: {name} # of the folder, runs/NAME
seed: 0 # of weights, order and masks
seeds: 1 # pre-training repetitions; 3 or more where intervals are to tell of their luck

corpus: # docs/data.md
  sources: # jsonl, text, parquet, arrow, datasets, webdataset or wikipedia
    - {source}
  tokenizer: {{kind: wordpiece, vocab_size: {vocabulary}, lowercase: true}} # learned from the text
  layout: segments # two segments a row, which BERT's next-sentence prediction needs
  seq_len: 128 # tokens a row
  heldout_fraction: 0.01 # of the documents, for the held-out loss and the probes

model: # docs/training.md
  size: {size} # {sizes}; any of its numbers may be set beside it
  max_positions: 128 # at least corpus.seq_len

training: # docs/training.md
  global_batch: {batch} # rows a step, over all workers
  micro_batch: 8 # rows a worker holds at a time; results stay the same
  schedule: {{warmup_fraction: 0.05}} # then down to 0 in a line
  zero_stage: 1 # of DeepSpeed's ZeRO: 0 to 3
  log_every: 20 # steps
  checkpoints: {{every: 500}} # steps; the same command again resumes (docs/resilience.md)

arms: # `sweep:` chooses their learning rates by held-out loss (docs/experiments.md)
  - {{objective: electra, learning_rate: {electra_rate}, generator: {{width: 0.25}}}} # width: of the discriminator's
  - {{objective: bert, learning_rate: {rate}}} # masked tokens and the next sentence
  - {{objective: roberta, learning_rate: {rate}}} # masked tokens, other ones in each epoch

budgets: [{budgets}] # model FLOPs of a run; steps follow from them

cluster: # without an address: a Ray of its own, on this machine
  num_workers: 2 # training processes; with use_gpu one GPU each
  use_gpu: false # true: NCCL and bf16
  # submit: # for `electra submit` (docs/operations.md)
  #   backend: ray # ray, kuberay or slurm
  #   shared: {{path: /shared}} # what every machine sees there
  #   secrets: [HF_TOKEN] # names of variables; their values are never written or sent

evaluation: # docs/evaluation.md
  suites: [probes] # built in; glue, squad and blimp need data
  seeds: 1 # fine-tunings of each run on each task
  protocol: {{epochs: 3}} # of a fine-tuning
"""
_COMMENT_COLUMN = 40


def write(file: Path, console: Console, *, text: Path | None, size: str, force: bool) -> dict[str, Any]:
    """Write the file. ConfigError for a size or a file name that cannot be, and for a file that is there without
    `force`; DataError where the text is not there or of no known kind."""
    if size not in _OF_SIZE:
        raise ConfigError(f"--size: no size is called {size!r}; there are {', '.join(SIZES)}")
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{file}: an experiment file ends with .yaml")
    if file.exists() and not force:
        raise ConfigError(f"{file}: is there already; choose another name, or write over it with --force")
    content = starter(file.stem, text, size)
    storage.write_bytes(file, content.encode())
    yaml_config.load(file, model=Experiment)
    console.say(f"{file}: written. Next: electra plan {file}; electra experiment run {file} --dry-run")
    return {"file": str(file.absolute())}


def starter(stem: str, source: Path | None, size: str) -> str:
    """The file's content, for an experiment named after the file. DataError as `write`."""
    numbers = _OF_SIZE[size]
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "-", stem).lstrip("-._") or "experiment"
    text = _TEXT.format(
        name=name,
        source=_source(source),
        vocabulary=numbers.vocabulary,
        size=size,
        sizes=", ".join(SIZES),
        batch=numbers.batch,
        electra_rate=f"{numbers.rates[0]:.1e}",
        rate=f"{numbers.rates[1]:.1e}",
        budgets=", ".join(f"{budget:.1e}" for budget in numbers.budgets),
    )
    return "".join(f"{_aligned(line)}\n" for line in text.splitlines())


def _aligned(line: str) -> str:
    """A line's comment where those of the others stand."""
    said, mark, comment = line.rpartition(" # ")
    return f"{said.ljust(_COMMENT_COLUMN - 2)}  # {comment}" if mark else line


def _source(text: Path | None) -> str:
    if text is None:
        return "{kind: installed_docs, max_bytes: 14000000} # docstrings of installed packages: to try with"
    if not text.is_file():
        raise DataError(f"{text}: no such file; --text names one file of your text")
    suffixes = [suffix for suffix in text.suffixes if suffix not in _COMPRESSED]
    kind = _KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise DataError(
            f"{text}: of no kind that is known by its name; there are {', '.join(_KINDS)}, compressed or not"
        )
    field = "" if kind == "text" else ", text_field: text"
    return f"{{kind: {kind}, path: {json.dumps(str(text.absolute()))}{field}}} # add more; weights mix them"
