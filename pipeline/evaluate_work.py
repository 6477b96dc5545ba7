"""One unit of an evaluation, in a worker: fine-tune and answer, or score minimal pairs.

A unit gives one row a dev side (of BLiMP, one a paradigm and network) and the files that its answers are in, which are
durable when it returns. Arrays of a side other than the unit's own task have its name before theirs (`fit_of` in
`pipeline.gather` reads them). Every row says what it is a result of; what no row may lack is `pipeline.gather`'s to
check.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cluster.tasks import Unit, committed
from data_prep import storage
from data_prep.settings import fingerprint
from training.protocol import TASKS, Protocol
from training.squad_protocol import SpanProtocol
from training.tasks import load_task

if TYPE_CHECKING:
    import torch

    from data_prep.tokenizer import Tokenizer
    from training.finetune import Answered, Backbone
    from training.judges import Judge
    from training.minimal_pairs import PairScores

Row = dict[str, Any]
Payload = dict[str, Any]


def work(payload: Payload) -> dict[str, Any]:
    """`rows` and `files` of one unit. Ray repeats a unit whose worker died after its record was written and before Ray
    heard of it: then they are the record's."""
    if (done := _committed(payload)) is not None:
        return done
    import torch

    torch.set_num_threads(1)
    device = torch.device("cuda" if payload["gpu"] and torch.cuda.is_available() else "cpu")
    kinds: dict[str, Callable[[Payload, torch.device], dict[str, Any]]] = {
        "classes": _classes,
        "spans": _spans,
        "pairs": _pairs,
    }
    return kinds[payload["kind"]](payload, device)


def _committed(payload: Payload) -> dict[str, Any] | None:
    """What the unit's record holds, if there is one and its files are there."""
    evaluation = storage.LocalFolder(payload["evaluation"])
    unit = Unit(
        name=payload["name"],
        payload=payload,
        folder=evaluation,
        record=f"units/{payload['name']}.json",
        identity=payload["identity"],
    )
    result = committed(unit)
    whole = result is not None and all(evaluation.size(name) is not None for name in result["files"])
    return result if whole else None


def _classes(payload: Payload, device: "torch.device") -> dict[str, Any]:
    from pipeline.evaluate_data import load_tests
    from training.finetune import finetune

    evaluation = Path(payload["evaluation"])
    data = load_task(evaluation / payload["data"])
    tests = [] if payload["tests"] is None else load_tests(evaluation / payload["tests"])
    protocol = Protocol.model_validate(payload["protocol"])
    backbone, tokenizer = _backbone(payload)
    tuned = finetune(
        backbone,
        data,
        task=TASKS[payload["suite"]][payload["task"]],
        tokenizer=tokenizer,
        protocol=protocol,
        seed=payload["seed"],
        device=device,
        tests=tests,
    )
    arrays: dict[str, NDArray[Any]] = {f"test/{name}": prediction for name, prediction in tuned.tests.items()}
    for side in tuned.sides:
        before = "" if side.task.name == payload["task"] else f"{side.task.name}/"
        own = {"label": side.label, "prediction": side.prediction, "group": side.group, "score": side.scores}
        arrays |= {before + name: array for name, array in own.items()}
    times = {"seconds": tuned.seconds, "cpu_seconds": tuned.cpu_seconds}
    subset = data.subset or _cut(payload, len(data.train))
    shared = {"n_train": tuned.n_train, "subset": subset, "skipped": len(data.skipped)}
    rows = [_row(payload, side.metrics, **times, **shared, **_side(side)) for side in tuned.sides]
    return {"rows": rows, "files": [_save(payload, arrays)]}


def _cut(payload: Payload, examples: int) -> bool:
    """Whether the protocol fine-tunes on fewer examples than there are, which makes the data a declared subset."""
    limit = payload["protocol"]["max_train_examples"]
    return limit is not None and limit < examples


def _side(side: "Answered") -> Row:
    return {
        "task": side.task.name,
        "in_mean": side.task.in_mean,
        "n_dev": len(side.label),
        "majority": side.majority,
        "degenerate": side.degenerate,
    }


def _backbone(payload: Payload) -> "tuple[Backbone, Tokenizer]":
    from data_prep import tokenizer
    from training.pretrained import load_network

    network, _ = load_network(payload["model"])
    return (network.config, network.embeddings, network.encoder), tokenizer.load(Path(payload["tokenizer"]))


def _row(payload: Payload, metrics: dict[str, float], *, seconds: float, cpu_seconds: float, **own: Any) -> Row:
    """A result: what the unit is of, what came of it (the first metric is the score), what it took."""
    protocol, metric = payload["protocol"], next(iter(metrics))
    return {
        **payload["facts"],
        "suite": payload["suite"],
        "metric": metric,
        "score": metrics[metric],
        "metrics": metrics,
        "finetune_seed": payload["seed"],
        "scorer": None,
        "protocol": {"fingerprint": fingerprint(protocol), **protocol},
        "unit": payload["name"],
        "data": payload["data"],
        "predictions": f"predictions/{payload['name']}.npz",
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        **own,
    }


def _save(payload: Payload, arrays: dict[str, NDArray[Any]]) -> str:
    """Write the arrays durably; their file's name."""
    name = f"predictions/{payload['name']}.npz"
    path = Path(payload["evaluation"]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_writer(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return name


# --- SQuAD ------------------------------------------------------------------------------------------------------------


def _spans(payload: Payload, device: "torch.device") -> dict[str, Any]:
    from training.finetune_spans import finetune_spans
    from training.squad import load_span_data

    data = load_span_data(Path(payload["evaluation"]) / payload["data"])
    backbone, tokenizer = _backbone(payload)
    cpu_start = time.process_time()
    tuned = finetune_spans(
        backbone,
        data,
        tokenizer=tokenizer,
        protocol=SpanProtocol.model_validate(payload["protocol"]),
        seed=payload["seed"],
        device=device,
    )
    answers = f"predictions/{payload['name']}.jsonl"
    lines = [json.dumps(_answers(one), ensure_ascii=False).encode() + b"\n" for one in tuned.answered]
    storage.make_folder(Path(payload["evaluation"]) / "predictions")
    storage.write_bytes(Path(payload["evaluation"]) / answers, b"".join(lines))
    arrays: dict[str, NDArray[Any]] = {
        "exact": tuned.exact, "f1": tuned.f1, "given": tuned.given, "group": tuned.group
    }  # fmt: skip
    metrics = {name: tuned.metrics[name] for name in (*data.task.metrics, *tuned.metrics)}
    row = _row(
        payload,
        metrics,
        task=payload["task"],
        thresholds=tuned.thresholds,
        in_mean=False,
        n_train=tuned.n_train,
        n_dev=tuned.n_dev,
        n_unplaced=tuned.n_unplaced,
        majority=tuned.majority,
        degenerate=tuned.degenerate,
        subset=data.subset or _cut(payload, sum(len(one.questions) for one in data.train)),
        skipped=0,
        answers=answers,
        seconds=tuned.seconds,
        cpu_seconds=time.process_time() - cpu_start,
    )
    return {"rows": [row], "files": [answers, _save(payload, arrays)]}


def _answers(one: Any) -> dict[str, Any]:
    answers = [[a.text, a.first, a.end, round(a.score, 4), round(a.probability, 6)] for a in one.answers]
    return {"id": one.id, "null_score": one.null_score, "answers": answers}


# --- BLiMP ------------------------------------------------------------------------------------------------------------


def _pairs(payload: Payload, device: "torch.device") -> dict[str, Any]:
    from data_prep import tokenizer
    from training.blimp import load_blimp
    from training.judges import load_judges
    from training.minimal_pairs import score_paradigms

    data = load_blimp(Path(payload["evaluation"]) / payload["data"])
    words = tokenizer.load(Path(payload["tokenizer"]))
    rows: list[Row] = []
    arrays: dict[str, NDArray[Any]] = {}
    for judge in load_judges(payload["model"]):
        scores = score_paradigms(judge.network, judge.scorer, tokenizer=words, paradigms=data.paradigms, device=device)
        suite = suite_of(judge)
        for name, one in scores.paradigms.items():
            arrays |= {f"{suite}/{name}/margin": one.margins, f"{suite}/{name}/hit": one.margins > 0}
        rows += _paradigms(payload, suite, judge, scores, data.subset)
    return {"rows": rows, "files": [_save(payload, arrays)]}


def suite_of(judge: "Judge") -> str:
    """A generator's scores are another network's: they stand apart from those of main networks."""
    return "blimp_generator" if judge.name == "generator" else "blimp"


def _paradigms(payload: Payload, suite: str, judge: "Judge", scores: "PairScores", subset: bool) -> Sequence[Row]:
    share = 1 / len(scores.paradigms)  # of the time, which is the network's for all paradigms
    return [
        _row(payload, {"accuracy": one.accuracy},
             seconds=scores.seconds * share, cpu_seconds=scores.cpu_seconds * share)
        | {
            "suite": suite,
            "task": name,
            "scorer": judge.scorer,
            "in_mean": True,
            "n_train": 0,
            "n_dev": one.n,
            "majority": 0.5,
            "degenerate": not scores.finite,
            "subset": subset,
            "skipped": 0,
        }
        for name, one in scores.paradigms.items()
    ]  # fmt: skip
