"""What the evaluation of an experiment will take, task by task: the part of `pipeline.estimate` that reads task data.

FLOPs are model FLOPs of the body (BLiMP: of the heads too) by the length of the texts, which are taken to have
`TOKENS_A_WORD` tokens a word: no tokenizer is asked. A unit's seconds come from those FLOPs where a rate is stated,
else from finished units of the task, else from what was measured; units run side by side on what the experiment has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.storage import Location
from pipeline import evaluate_data, gather
from pipeline.devices import Stated
from pipeline.place import cores
from training.blimp import PairData
from training.flops import TRAINED, Counts, network_costs
from training.protocol import TASKS, EvaluationConfig
from training.settings import RunSpec
from training.squad import SpanData
from training.tasks import Example, TaskData

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.measured import Measured

TOKENS_A_WORD = 1.3  # of English in a vocabulary of 30,000 pieces; smaller ones cut finer


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEstimate:
    """One task of a suite: its fine-tunings of all runs (of BLiMP, one scoring a run). Figures are of what is left."""

    suite: str
    task: str
    units: int
    done: int
    unit_steps: int  # optimizer steps of one fine-tuning; 0 of BLiMP, and of probes before the corpus is prepared
    flops: float
    seconds: float | None  # by the wall clock
    cost: float | None
    source: str


@dataclass(frozen=True, slots=True)
class _Unit:
    """What fine-tuning on a task takes, whichever run it is of, or of BLiMP by the run's shape."""

    steps: int
    flops: Mapping[str, float]  # by run


def evaluations(
    experiment: "Experiment",
    specs: Sequence[RunSpec],
    out: Path,
    corpus: Location | None,
    stated: Stated | None,
    measured: "Measured | None",
) -> list[EvaluationEstimate]:
    """Every task of every suite. DataError where the data of one is missing."""
    config, runs = experiment.evaluation, [spec for spec in specs if spec.part_of is None]
    results = _todays(gather.read_results(out), config) if out.is_dir() else []
    found = []
    for suite, task, unit in _units(config, corpus, runs):
        own = [row for row in results if row["suite"] == suite and task in (row["task"], evaluate_data.PAIRS)]
        done = {(row["run"], row["finetune_seed"]) for row in own}
        seeds = 1 if suite == "blimp" else config.seeds
        left = [spec for spec in runs for seed in range(seeds) if (spec.name, seed) not in done]
        flops = sum(unit.flops[spec.name] for spec in left)
        seconds, source = _seconds(suite, task, left, flops, own, stated, measured, experiment)
        found.append(
            EvaluationEstimate(
                suite=suite,
                task=task,
                units=len(runs) * seeds,
                done=len(runs) * seeds - len(left),
                unit_steps=unit.steps,
                flops=flops,
                seconds=seconds,
                cost=stated.cost(seconds) if stated is not None and seconds is not None else None,
                source=source,
            )
        )
    return found


def _todays(results: Sequence[dict[str, Any]], config: EvaluationConfig) -> list[dict[str, Any]]:
    """The results under the experiment's present protocol."""
    prints = {suite: config.protocol_of(suite).fingerprint() for suite in config.suites}
    return [row for row in results if prints.get(row["suite"]) == row["protocol"].get("fingerprint")]


def _seconds(
    suite: str,
    task: str,
    left: Sequence[RunSpec],
    flops: float,
    finished: Sequence[dict[str, Any]],
    stated: Stated | None,
    measured: "Measured | None",
    experiment: "Experiment",
) -> tuple[float | None, str]:
    if not left:
        return 0.0, "done"
    if stated is not None:
        return stated.seconds(flops), stated.source
    if finished:
        units = len({(row["run"], row["finetune_seed"]) for row in finished})
        each = sum(row["seconds"] for row in finished) / units
        return len(left) * each / _slots(experiment), "finished units"
    from pipeline.estimate import shape_of

    known = {} if measured is None else measured.unit_seconds.get((suite, task), {})
    times = [known.get(shape_of(spec)) for spec in left]
    if any(one is None for one in times) or measured is None:
        return None, "unknown before the corpus is prepared" if suite == "probes" else "unknown"
    longest, total = max(one or 0.0 for one in times), sum(one or 0.0 for one in times)
    return max(longest, total / _slots(experiment)), measured.source


def _slots(experiment: "Experiment") -> float:
    """Units at a time."""
    gpus = experiment.evaluation.gpus_per_unit
    if gpus > 0:
        return max(1.0, experiment.cluster.num_workers / gpus)
    return float(cores(experiment.cluster))


# --- the work of a unit -----------------------------------------------------------------------------------------------


def _units(
    config: EvaluationConfig, corpus: Location | None, runs: Sequence[RunSpec]
) -> Iterator[tuple[str, str, _Unit]]:
    names = evaluate_data.task_names(config)
    if corpus is None:
        for task in names.pop("probes", []):
            yield "probes", task, _Unit(0, dict.fromkeys((run.name for run in runs), 0.0))
    for data in evaluate_data.read(names, config, corpus):
        if isinstance(data, PairData):
            yield "blimp", evaluate_data.PAIRS, _Unit(0, {run.name: _pair_flops(run, data) for run in runs})
            continue
        suite, task = ("squad", data.task.name) if isinstance(data, SpanData) else (data.suite, data.task)
        steps, cost = _spans(data, config) if isinstance(data, SpanData) else _classes(data, config)
        yield suite, task, _Unit(steps, {run.name: _body_flops(run, cost) for run in runs})


def _body_flops(run: RunSpec, counts: Counts) -> float:
    """Forward FLOPs of the main network's layers over these tokens."""
    columns = network_costs(run.identity.arm, run.identity.model)
    return columns["discriminator" if "discriminator" in columns else "encoder"].layers.of(counts)


def _classes(data: TaskData, config: EvaluationConfig) -> tuple[int, Counts]:
    """Steps of a fine-tuning, and what it costs in forward passes: three a training example and epoch, one a dev
    one."""
    protocol = config.protocol
    trained = min(len(data.train), protocol.max_train_examples or len(data.train))
    examples = trained * (2 if data.task in protocol.doubled else 1)
    epochs = protocol.epochs_for(data.task)
    train = _counts([_length(one, protocol.max_length) for one in data.train])
    counts = train.scaled(TRAINED * epochs * examples / len(data.train))
    for task in TASKS[data.suite][data.task].sides():
        counts += _counts([_length(one, protocol.max_length) for one in data.side(task.name)])
    return epochs * -(-examples // protocol.batch_size), counts


def _spans(data: SpanData, config: EvaluationConfig) -> tuple[int, Counts]:
    protocol = config.squad_protocol

    def lengths(paragraphs: Sequence[Any]) -> list[float]:
        return [
            min(_tokens(p.context) + _tokens(q.text) + 3, protocol.max_length) for p in paragraphs for q in p.questions
        ]

    train = lengths(data.train)
    examples = min(len(train), protocol.max_train_examples or len(train))
    counts = _counts(train).scaled(TRAINED * protocol.epochs * examples / len(train)) + _counts(lengths(data.dev))
    return protocol.epochs * -(-examples // protocol.batch_size), counts


def _pair_flops(run: RunSpec, data: PairData) -> float:
    """Of every network of an arm that judges sentences: one row a sentence where it detects, one a word where it fills
    masks."""
    words = [_tokens(text) for one in data.paradigms for pair in one.pairs for text in (pair.good, pair.bad)]
    columns = network_costs(run.identity.arm, run.identity.model)
    total = 0.0
    if "discriminator" in columns:
        total += (columns["discriminator"].outside + columns["discriminator"].layers).of(
            _counts([n + 2 for n in words])
        )
    filler = columns.get("generator", columns.get("encoder"))
    if filler is not None:
        rows = Counts(
            tokens=sum(n * (n + 2) for n in words), squares=sum(n * (n + 2) ** 2 for n in words), masked=sum(words)
        )
        total += (filler.outside + filler.layers).of(rows)
    return total


def _length(example: Example, most: int) -> float:
    second = 0.0 if example.text_b is None else _tokens(example.text_b) + 1
    return min(_tokens(example.text_a) + second + 2, most)


def _tokens(text: str) -> float:
    return TOKENS_A_WORD * len(text.split())


def _counts(lengths: Sequence[float]) -> Counts:
    return Counts(tokens=sum(lengths), squares=sum(n * n for n in lengths))
