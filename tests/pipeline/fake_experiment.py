"""A small experiment directory written file by file in the formats the parts agreed on, with known numbers.

For tests of what reads such a directory; nothing here computes anything. `write` is deterministic.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from data_prep import manifest as manifests
from data_prep.manifest import Documents, Manifest, ShardEntry, SplitStats
from data_prep.rows import SpecialIds
from data_prep.settings import fingerprint

ARMS = ("electra", "bert", "roberta")
BUDGETS = (4.0e11, 1.2e12)
FLOPS_PER_STEP = {"electra": 1.31e9, "bert": 1.52e9, "roberta": 1.47e9}
START = 1_700_000_000.0
# so small that a step of 64 rows costs about what is said above
MODEL = {
    "embedding_size": 16, "hidden_size": 16, "num_layers": 1, "num_heads": 1, "intermediate_size": 64,
    "max_positions": 128, "vocab_size": 8192, "dropout": 0.0, "attention_dropout": 0.0, "layer_norm_eps": 1e-12,
    "init_range": 0.02, "type_vocab": 2,
}  # fmt: skip
# right answers out of n, by arm and budget
PROBES: dict[str, dict[str, Any]] = {
    "sentence_order": {
        "n": 2400,
        "classes": 2,
        "right": {"electra": (1440, 1608), "bert": (1400, 1512), "roberta": (1430, 1530)},
    },
    "source_topic": {
        "n": 1500,
        "classes": 12,
        "right": {"electra": (600, 825), "bert": (570, 720), "roberta": (585, 790)},
    },
    "bigram_shift": {
        "n": 2400,
        "classes": 2,
        "right": {"electra": (1500, 1800), "bert": (1260, 1300), "roberta": (1250, 1310)},
    },
}
GLUE: dict[str, dict[str, Any]] = {
    "CoLA": {"n": 1043, "classes": 2, "right": {"electra": (720, 724), "bert": (721, 722), "roberta": (719, 721)}},
    "MRPC": {"n": 408, "classes": 2, "right": {"electra": (280, 290), "bert": (279, 284), "roberta": (280, 282)}},
    "RTE": {"n": 277, "classes": 2, "right": {"electra": (148, 150), "bert": (146, 149), "roberta": (147, 146)}},
}


def write(out: Path, *, suites: tuple[str, ...] = ("probes",), steps_logged: int = 100) -> Path:
    """A finished experiment."""
    out.mkdir(parents=True, exist_ok=True)
    manifest = write_corpus(out)
    config = {
        "name": "quickstart",
        "seed": 0,
        "seeds": 1,
        "corpus": {"sources": [{"kind": "installed_docs", "max_bytes": 14_000_000}], "layout": "segments"},
        "model": {"embedding_size": 128, "hidden_size": 128, "num_layers": 2, "num_heads": 2},
        "training": {"global_batch": 64, "micro_batch": 32, "zero_stage": 1},
        "arms": [{"objective": arm, "name": arm, "learning_rate": 5e-4} for arm in ARMS],
        "budgets": list(BUDGETS),
        "cluster": {"num_workers": 2, "threads_per_worker": 1},
        "evaluation": {"suite": "probes"},
    }
    (out / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    for index in range(len(BUDGETS)):
        for arm in ARMS:
            write_run(out, arm, index, manifest.sha256, start=START + 100 * index, steps_logged=steps_logged)
    results = [
        result
        for suite in suites
        for index in range(len(BUDGETS))
        for arm in ARMS
        for result in write_results(out, arm, index, suite)
    ]
    write_results_file(out, results)
    return out


def write_corpus(out: Path) -> Manifest:
    """The manifest of a corpus; no shards."""

    def split(rows: int) -> SplitStats:
        lengths = [0] * 129
        lengths[120] = rows
        shard = ShardEntry(
            name="train/00000-000.tar", bytes=10, sha256="0" * 64, members=1, rows=rows, first_row=0, unit=0
        )
        return SplitStats(
            rows=rows,
            tokens=120 * rows,
            fragments=rows,
            sum_L=120 * rows,
            sum_L2=14400 * rows,
            row_lengths=lengths,
            rows_with_pair=rows,
            unk=17,
            shards=[shard],
        )

    manifest = Manifest(
        config_sha256="c" * 64,
        inputs_sha256="1" * 64,
        seed=0,
        tokenizer_sha256="f" * 64,
        vocab_size=8192,
        special=SpecialIds(cls=2, sep=3, pad=0, mask=4, unk=1),
        layout="segments",
        pair_separators=1,
        seq_len=128,
        dtype="uint16",
        units=9,
        documents=Documents(
            documents_in=41_210,
            out=33_006,
            train=29_771,
            heldout=3_235,
            text_bytes=13_204_112,
            rejected={"too_short": 6_120, "duplicate": 1_803, "not_prose": 281},
            topics={"numpy": 16_000, "torch": 17_006},
        ),
        heldout_documents=[],
        train=split(25_310),
        heldout=split(2_740),
        sources=[],
    )
    (out / "corpus").mkdir(parents=True, exist_ok=True)
    manifests.save(manifest, out / "corpus")
    return manifest


def run_name(arm: str, budget: float) -> str:
    """As the pipeline names it."""
    return f"{arm}-{budget:.2e}-s0"


def write_run(
    out: Path, arm: str, index: int, manifest_sha256: str, *, start: float, steps_logged: int = 100, done: bool = True
) -> Path:
    """One training run; without `done` it stops after half its lines."""
    budget = BUDGETS[index]
    steps = round(budget / FLOPS_PER_STEP[arm])
    folder = out / "runs" / run_name(arm, budget)
    spec = {
        "name": folder.name,
        "arm": arm,
        "objective": arm,
        "budget": budget,
        "flops_per_step": FLOPS_PER_STEP[arm],
        "steps": steps,
        "seed": 0,
        "identity": {
            "arm": {"objective": arm, "learning_rate": 5e-4, "mask_prob": 0.15}
            | ({"mask_versions": 10} if arm == "bert" else {}),
            "model": MODEL,
            "optimizer": {"kind": "reference_adam"},
            "schedule": {"kind": "linear", "warmup_steps": round(0.05 * steps), "decay_steps": 0},
            "order": {"window_shards": None},
            "global_batch": 64,
            "steps": steps,
            "seed": 0,
            "seq_len": 128,
            "manifest_sha256": manifest_sha256,
            "tokenizer_sha256": "f" * 64,
        },
        "placement": {"micro_batch": 32, "zero_stage": 1},
    }
    _write(folder / "run.json", json.dumps(spec))
    lines = metric_lines(arm, steps, start, steps_logged)
    if not done:
        lines = lines[: len(lines) // 2]
    _write(folder / "metrics" / "A-00000.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    if done:
        last = lines[-1]["values"]
        record = {
            "step": steps,
            "start_position": 0,
            "position": 64 * steps,
            "skipped": [],
            "budget": budget,
            "flops_per_step": FLOPS_PER_STEP[arm],
            "flops_counted": last["flops"],
            "flops_spent": last["flops"],
            "tokens": last["tokens"],
            "seconds": last["seconds"],
            "tokens_per_second": last["tokens"] / last["seconds"],
            "checkpoint": f"step-{steps:08d}",
            "heldout": {name: value for name, value in last.items() if name.startswith("heldout/")},
            "parameters": 1_700_000,
            "world_size": 2,
            "hardware": "2 CPU process(es) on x86_64",
        }
        _write(folder / "done.json", json.dumps(record))
    return folder


def make_two_stage(out: Path) -> tuple[str, str]:
    """Turn the larger ELECTRA run into a second stage and write the first one that it continues, `mlm` at half the
    budget; returns the names of both."""
    second = out / "runs" / run_name("electra", BUDGETS[1])
    first = out / "runs" / f"electra-first-{BUDGETS[1] / 2:.2e}-s0"
    shutil.copytree(out / "runs" / run_name("roberta", BUDGETS[1]), first)
    identity = json.loads((first / "run.json").read_text())["identity"]
    change(
        first / "run.json",
        name=first.name, arm="electra-first", objective="mlm", budget=BUDGETS[1] / 2, part_of=second.name,
        identity={**identity, "arm": {**identity["arm"], "objective": "mlm"}},
    )  # fmt: skip
    begun = json.loads((first / "run.json").read_text())
    origin = f"{fingerprint(begun['identity'])}@{begun['steps']}"
    change(second / "run.json", objective="electra_two_stage", inherited=BUDGETS[1] / 2)
    start, own = 64 * begun["steps"], json.loads((second / "done.json").read_text())["position"]
    change(second / "done.json", start_position=start, position=start + own)
    begin_with(second, {f"../{first.name}/checkpoints/step-{begun['steps']:08d}": origin}, flops=BUDGETS[1] / 2)
    return first.name, second.name


def begin_with(run: Path, folders: dict[str, str], *, flops: float = 0.0, purpose: str = "weights") -> None:
    """Let a finished run have begun with folders of these identities, of which `flops`, a million tokens and ten
    seconds are in its figures if any are."""
    spec = json.loads((run / "run.json").read_text())
    for section, values in (("identity", list(folders.values())), ("placement", list(folders))):
        spec[section]["init"] = {**spec[section].get("init", {}), purpose: values}
    change(run / "run.json", **spec)
    if flops:
        change(run / "done.json", inherited={"flops_counted": flops, "tokens": 1_000_000, "seconds": 10.0})


def change(path: Path, **values: Any) -> None:
    """Other values in a JSON record."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def metric_lines(arm: str, steps: int, start: float, count: int) -> list[dict[str, Any]]:
    """`count` lines, evenly spaced, the last at the last step; held-out figures on every fourth from the last."""
    generator = np.random.default_rng([ARMS.index(arm), steps])
    marks = sorted({max(1, round(steps * (i + 1) / count)) for i in range(count)})
    return [
        {
            "attempt": 0,
            "resumed_at": 0,
            "step": step,
            "time": start + 0.05 * step,
            "values": _values(arm, step, generator, heldout=(len(marks) - 1 - position) % max(1, count // 4) == 0),
        }
        for position, step in enumerate(marks)
    ]


def _values(arm: str, step: int, generator: np.random.Generator, *, heldout: bool) -> dict[str, float]:
    progress = step / 300
    figures = {"mlm_loss": 5.4 + 3.6 * float(np.exp(-progress))}
    if arm == "electra":
        figures |= {
            "rtd_loss": 0.30 + 0.35 * float(np.exp(-2 * progress)),
            "rtd_auc": 0.85 - 0.33 * float(np.exp(-progress / 2)),
            "rtd_accuracy": 0.9,
            "replaced_rate": 0.13,
        }
    if arm == "bert":
        figures |= {"nsp_loss": 0.66 + 0.03 * float(np.exp(-progress)), "nsp_accuracy": 0.55}
    values = {f"train/{name}": value + 0.02 * float(generator.normal()) for name, value in figures.items()}
    values["train/loss"] = sum(value for name, value in values.items() if name.endswith("_loss"))
    if heldout:
        values |= {f"heldout/{name}": value + 0.03 for name, value in figures.items()}
    return values | {
        "learning_rate": 5e-4,
        "flops": FLOPS_PER_STEP[arm] * step,
        "flops_spent": FLOPS_PER_STEP[arm] * step,
        "tokens": 64 * 118 * step,
        "seconds": 0.05 * step,
        "tokens_per_second": 64 * 118 / 0.05,
        "flops_per_second": FLOPS_PER_STEP[arm] / 0.05,
        "skipped_steps": 0,
    }


def write_results(out: Path, arm: str, index: int, suite: str, finetune_seed: int = 0) -> list[dict[str, Any]]:
    """The predictions of one checkpoint on a suite; returns its result lines."""
    return [
        write_result(out, arm, index, suite, task, table["right"][arm][index], finetune_seed)
        for task, table in (PROBES if suite == "probes" else GLUE).items()
    ]


def write_result(
    out: Path, arm: str, index: int, suite: str, task: str, right: int, finetune_seed: int = 0
) -> dict[str, Any]:
    """Predictions with `right` correct answers and their result line."""
    table = (PROBES if suite == "probes" else GLUE)[task]
    n, classes, budget = table["n"], table["classes"], BUDGETS[index]
    # the same task has the same labels, whoever answers; who is right about which example is drawn
    key = [len(task), sum(map(ord, task))]
    label = np.random.default_rng(key).integers(0, classes, n)
    correct = np.zeros(n, dtype=bool)
    # half of what an arm gets right is what every arm gets right
    order = np.random.default_rng(key).permutation(n)
    own = np.random.default_rng([*key, ARMS.index(arm), index, finetune_seed]).permutation(order[right // 2 :])
    correct[order[: right // 2]] = True
    correct[own[: right - right // 2]] = True
    prediction = np.where(correct, label, (label + 1) % classes)
    metric = "matthews" if task == "CoLA" else "accuracy"
    score = right / n
    if metric == "matthews":
        covariance = np.corrcoef(label, prediction)[0, 1]
        score = float(covariance)
    name = f"{run_name(arm, budget)}-{task}-{finetune_seed}"
    predictions = out / "evaluation" / "predictions" / f"{name}.npz"
    predictions.parent.mkdir(parents=True, exist_ok=True)
    scores = np.zeros((n, classes), dtype=np.float32)
    np.savez(predictions, label=label, prediction=prediction, score=scores)
    steps = round(budget / FLOPS_PER_STEP[arm])
    return {
        "run": run_name(arm, budget),
        "arm": arm,
        "objective": arm,
        "budget": budget,
        "seed": 0,
        "step": steps,
        "flops_counted": FLOPS_PER_STEP[arm] * steps,
        "suite": suite,
        "task": task,
        "metric": metric,
        "score": score,
        "metrics": {metric: score},
        "in_mean": task != "bigram_shift",
        "n_train": 6000,
        "n_dev": n,
        "majority": float(np.bincount(label).max() / n),
        "degenerate": False,
        "subset": False,
        "finetune_seed": finetune_seed,
        "protocol": {"name": "plain", "fingerprint": "a" * 64, "learning_rate": 3e-4, "epochs": 3, "batch_size": 32},
        "predictions": f"predictions/{name}.npz",
        "seconds": 4.0,
    }


def write_results_file(out: Path, results: list[dict[str, Any]]) -> None:
    """results.jsonl."""
    _write(out / "evaluation" / "results.jsonl", "".join(json.dumps(result) + "\n" for result in results))


def read_results_file(out: Path) -> list[dict[str, Any]]:
    """The lines of results.jsonl."""
    return [json.loads(line) for line in (out / "evaluation" / "results.jsonl").read_text().splitlines()]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
