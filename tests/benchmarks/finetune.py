"""Speed of fine-tuning: `python -m tests.benchmarks.finetune [EXAMPLES]`, on two cores.

One epoch over so many training examples and the answers to the whole dev set, on RTE and SST-2, with the model, batch,
rate and longest text of transformers' Trainer in the same process: once as its examples do it by default, padding to
the longest text allowed, and once padding each batch to its own longest. CPU time, because cores are shared. Below, how
much of two independent loops a grid on Ray with two cores is worth, in wall time.

ELECTRA_TEST_DATA names the folder with glue/, ELECTRA_TEST_MINILM a small model's (all-MiniLM-L6-v2). The Trainer needs
the package `accelerate`, which nothing else here does.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read by torch: threads that spin would count as work

import numpy as np
import torch

from cluster.session import session
from cluster.tasks import run_units
from data_prep import tokenizer as tokenizers
from pipeline.console import quiet_libraries
from pipeline.evaluate import ENV
from pipeline.evaluate_data import materials
from pipeline.evaluate_targets import model_at
from pipeline.evaluate_units import is_whole, units
from pipeline.evaluate_work import work
from training.finetune import finetune
from training.glue import TASKS, load_glue
from training.pretrained import load_network
from training.protocol import EvaluationConfig, Protocol
from training.tasks import TaskData

TRAINED = {"RTE": 1, "SST-2": 2}  # times EXAMPLES, of texts that are shorter
BATCH, LONGEST, RATE = 32, 128, 1e-4
GRID = {"seeds": 6, "examples": 96}


def cpu_seconds(function: Callable[[], float]) -> tuple[float, float]:
    """(CPU seconds, what it returned)."""
    started = time.process_time()
    found = function()
    return time.process_time() - started, found


def ours(model: Path, data: TaskData) -> float:
    """Accuracy on dev."""
    network, _ = load_network(model)
    tuned = finetune(
        (network.config, network.embeddings, network.encoder),
        data,
        task=TASKS[data.task],
        tokenizer=tokenizers.load(model),
        protocol=Protocol(learning_rate=RATE, epochs=1, batch_size=BATCH, max_length=LONGEST),
        seed=0,
        device=torch.device("cpu"),
    )
    return tuned.sides[0].metrics["accuracy"]


def theirs(model: Path, data: TaskData, *, whole: bool) -> float:
    """The same by transformers' Trainer; `whole`: every text is padded to the longest allowed."""
    import transformers

    network = transformers.AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(data.classes))
    words = transformers.AutoTokenizer.from_pretrained(model)

    def encoded(examples: list[Any]) -> list[dict[str, Any]]:
        texts = [[e.text_a for e in examples]] + ([[e.text_b for e in examples]] if examples[0].text_b else [])
        found = words(*texts, truncation=True, max_length=LONGEST, padding="max_length" if whole else False)
        return [{**{name: found[name][i] for name in found}, "labels": int(e.label)} for i, e in enumerate(examples)]

    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            network,
            transformers.TrainingArguments(
                folder, per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH, num_train_epochs=1,
                learning_rate=RATE, warmup_steps=0.1, weight_decay=0.01, report_to=[], save_strategy="no",
                disable_tqdm=True, use_cpu=True, logging_strategy="no",
            ),
            train_dataset=encoded(data.train),
            data_collator=transformers.DataCollatorWithPadding(words),
        )  # fmt: skip
        trainer.train()
        found = trainer.predict(encoded(data.dev))
    return float((found.predictions.argmax(axis=1) == found.label_ids).mean())


def compare(model: Path, glue: Path, examples: int) -> None:
    print("| task, training examples | | CPU seconds | times ours | accuracy |\n|---|---|---|---|---|")
    for name, times in TRAINED.items():
        whole = load_glue(glue, name)
        chosen = np.random.default_rng(0).permutation(len(whole.train))[: times * examples]
        data = replace(whole, train=[whole.train[i] for i in chosen])
        ours(model, replace(data, train=data.train[:BATCH], dev=data.dev[:BATCH]))  # warm
        results = {
            "ours": cpu_seconds(partial(ours, model, data)),
            f"Trainer, padded to {LONGEST}": cpu_seconds(partial(theirs, model, data, whole=True)),
            "Trainer, padded to the batch": cpu_seconds(partial(theirs, model, data, whole=False)),
        }
        for way, (seconds, accuracy) in results.items():
            ratio = seconds / results["ours"][0]
            print(f"| {name}, {len(data.train):,} | {way} | {seconds:.0f} | {ratio:.2f} | {accuracy:.3f} |", flush=True)


def grid(model: Path, glue: Path) -> None:
    """Units on Ray with two cores, and the same in two loops side by side; each twice, in turn."""
    protocol = Protocol(learning_rate=RATE, epochs=1, max_length=LONGEST, max_train_examples=GRID["examples"])
    asked = {"suites": ["glue"], "glue_dir": glue, "tasks": ["RTE"], "seeds": GRID["seeds"], "protocol": protocol}
    config = EvaluationConfig.model_validate(asked)
    took: dict[str, list[float]] = {"grid": [], "loops": []}
    with tempfile.TemporaryDirectory() as place, session(num_cpus=2):
        for turn in range(2):
            for way in took:
                evaluation = Path(place) / f"{way}{turn}"
                found = materials(config, None, evaluation / "tasks", tests=False)
                todo = units([model_at(model)], found, config, evaluation)
                started = time.monotonic()
                if way == "grid":
                    run_units(work, todo, env=ENV, intact=is_whole)
                else:
                    _loops([unit.payload for unit in todo])
                took[way].append(time.monotonic() - started)
    best = {way: min(seconds) for way, seconds in took.items()}
    print(f"\nsix fine-tunings: grid {took['grid']}, two loops {took['loops']} (s)")
    print(f"grid efficiency: {100 * best['loops'] / best['grid']:.0f} %")


def _loops(payloads: list[Any]) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.finetune", "--loop"]
    loops = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env={**os.environ, **ENV}) for _ in range(2)]
    for i, loop in enumerate(loops):
        assert loop.stdin is not None
        loop.stdin.write(json.dumps(payloads[i::2]))
        loop.stdin.close()
    for loop in loops:
        assert loop.wait() == 0


def main(examples: int) -> None:
    quiet_libraries(offline=True)
    torch.set_num_threads(2)
    model, glue = Path(os.environ["ELECTRA_TEST_MINILM"]), Path(os.environ["ELECTRA_TEST_DATA"]) / "glue"
    compare(model, glue, examples)
    grid(model, glue)


if __name__ == "__main__":
    if sys.argv[1:] == ["--loop"]:
        for one in json.load(sys.stdin):
            work(one)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
