"""What one process does when evaluation is measured: a part of each task, by the functions that a unit calls.

Only `pipeline.measured` calls this, in a process of its own; imports torch. A fine-tuning's time goes with its
examples: those of some training examples and some of the dev side are timed, and the rest costs in proportion. So does
scoring minimal pairs, which each network of an arm does in its own way. Times are CPU seconds of one thread, so that
what else the machine does just now counts for nothing. Where the corpus is not prepared, a vocabulary
is learned from the tasks' own texts, which are cut into about as many tokens.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data_prep import tokenizer as tokenizers
from data_prep.integrity import local_tokenizer
from data_prep.manifest import Manifest
from data_prep.tokenizer import Tokenizer, TokenizerConfig
from pipeline import evaluate_data
from training.blimp import PairData, Paradigm
from training.encoder import Embeddings, Encoder
from training.finetune import finetune
from training.finetune_spans import finetune_spans
from training.minimal_pairs import Scorer, score_paradigms
from training.network import Network
from training.objectives import Objective, build
from training.protocol import TASKS, EvaluationConfig
from training.settings import RunSpec
from training.sizes import EncoderConfig
from training.squad import SpanData
from training.tasks import TaskData

SAMPLE = 512  # training examples of a task that are timed
SPANS = 32  # questions
PAIRS = 2  # of a paradigm
LEARNED_TEXTS = 20_000  # that a vocabulary is learned from
FORWARD = 0.35  # of what training on an example takes, that answering one takes

CPU = torch.device("cpu")
Seconds = dict[tuple[str, str], dict[str, float]]


def measure(
    specs: Mapping[str, dict[str, Any]],
    config: dict[str, Any],
    tokenizer: dict[str, Any],
    manifest: dict[str, Any],
    corpus: str | None,
    main: str | None,
) -> Seconds:
    """Seconds of a unit by (suite, task), of every run in `specs` under its key. `corpus` is what the runs read, `main`
    what probes are made of; None where they are not prepared."""
    torch.set_num_threads(1)
    evaluation, known = EvaluationConfig.model_validate(config), Manifest.model_validate(manifest)
    runs = {key: RunSpec.model_validate(spec) for key, spec in specs.items()}
    data = list(_data(evaluation, main))
    words = _tokenizer(data, TokenizerConfig.model_validate(tokenizer), corpus)
    model = next(iter(runs.values())).identity.model
    found: Seconds = {}
    if first := next((one for one in data if isinstance(one, TaskData)), None):
        _classes(first, model, evaluation, words, sample=32)  # what is imported and made once is no part of a unit
    for one in data:
        if isinstance(one, PairData):
            each = {key: _pairs(build_fresh(run, known), one, words) for key, run in runs.items()}
            found["blimp", evaluate_data.PAIRS] = each
        elif isinstance(one, SpanData):
            found["squad", one.task.name] = dict.fromkeys(runs, _spans(one, model, evaluation, words))
        else:
            found[one.suite, one.task] = dict.fromkeys(runs, _classes(one, model, evaluation, words))
    return found


def _data(config: EvaluationConfig, corpus: str | None) -> Iterator[evaluate_data.Data]:
    """What is evaluated on; probes, which are made of the corpus, only where there is one."""
    names = evaluate_data.task_names(config)
    if corpus is None:
        names.pop("probes", None)
    yield from evaluate_data.read(names, config, corpus)


def _tokenizer(data: list[evaluate_data.Data], config: TokenizerConfig, corpus: str | None) -> Tokenizer:
    if corpus is not None:
        return tokenizers.load(local_tokenizer(corpus))
    if config.path is not None and Path(config.path).exists():
        return tokenizers.load(Path(config.path), lowercase=config.lowercase)
    texts = [text for one in data for text in _texts(one)]
    step = max(1, len(texts) // LEARNED_TEXTS)
    return tokenizers.train(texts[::step] or ["nothing is evaluated"], config)


def _texts(data: evaluate_data.Data) -> Iterator[str]:
    if isinstance(data, PairData):
        yield from (text for one in data.paradigms for pair in one.pairs for text in (pair.good, pair.bad))
    elif isinstance(data, SpanData):
        yield from (paragraph.context for paragraph in data.train)
    else:
        yield from (text for one in data.train for text in (one.text_a, one.text_b) if text is not None)


def _backbone(model: EncoderConfig) -> tuple[EncoderConfig, Embeddings, Encoder]:
    return model, Embeddings(model), Encoder(model)


def _classes(
    data: TaskData, model: EncoderConfig, config: EvaluationConfig, words: Tokenizer, sample: int = SAMPLE
) -> float:
    """Of a whole fine-tuning, from one of `sample` examples, and a quarter as many of each dev side."""
    protocol, task = config.protocol, TASKS[data.suite][data.task]
    trained = min(len(data.train), protocol.max_train_examples or len(data.train))
    doubled = 2 if data.task in protocol.doubled else 1
    whole = trained * doubled * protocol.epochs_for(data.task) + FORWARD * sum(len(s) for s in _sides(data))
    part = replace(data, train=data.train[:sample], dev=data.dev[:sample // 4],
                   also={name: side[:sample // 4] for name, side in data.also.items()})  # fmt: skip
    once = protocol.model_copy(update={"epochs": 1, "epochs_of": {}, "max_train_examples": None})
    tuned = finetune(_backbone(model), part, task=task, tokenizer=words, protocol=once, seed=0, device=CPU)
    timed = len(part.train) * doubled + FORWARD * sum(len(s) for s in _sides(part))
    return tuned.cpu_seconds * whole / timed


def _sides(data: TaskData) -> list[list[Any]]:
    return [data.dev, *data.also.values()]


def _spans(data: SpanData, model: EncoderConfig, config: EvaluationConfig, words: Tokenizer) -> float:
    protocol = config.squad_protocol
    questions = sum(len(p.questions) for p in data.train)
    trained = min(questions, protocol.max_train_examples or questions)
    whole = trained * protocol.epochs + FORWARD * sum(len(p.questions) for p in data.dev)
    once = protocol.model_copy(update={"epochs": 1, "max_train_examples": SPANS})
    dev = [replace(p, questions=p.questions[:1]) for p in data.dev[: SPANS // 4]]
    part = replace(data, dev=dev)
    began = time.process_time()
    tuned = finetune_spans(_backbone(model), part, tokenizer=words, protocol=once, seed=0, device=CPU)
    return (time.process_time() - began) * whole / (tuned.n_train + FORWARD * len(dev))


def build_fresh(run: RunSpec, manifest: Manifest) -> Objective:
    """The objective of a run with random weights."""
    identity = run.identity
    return build(
        identity.arm, identity.model, manifest.special, seq_len=identity.seq_len, packed=manifest.layout == "packed"
    )


def _pairs(objective: Objective, data: PairData, words: Tokenizer) -> float:
    """Of scoring all pairs with every network of an arm that can judge them."""
    some = [Paradigm(one.name, one.term, one.pairs[:PAIRS]) for one in data.paradigms]
    share = sum(len(one.pairs) for one in data.paradigms) / sum(len(one.pairs) for one in some)
    scored = (
        score_paradigms(network, scorer, tokenizer=words, paradigms=some, device=CPU)
        for network, scorer in _judges(objective)
    )
    return sum(one.cpu_seconds for one in scored) * share


def _judges(objective: Objective) -> Iterator[tuple[Network, Scorer]]:
    """As `training.judges`: the main network by what it detects, and the network that has seen [MASK]."""
    networks = objective.networks()
    main, generator = networks[objective.main], networks.get("generator")
    if "rtd" in main.heads:
        yield main, "rtd"
    if generator is not None:
        yield generator, "pll"
    elif "mlm" in main.heads:
        yield main, "pll"
