"""What tests share: a quiet, offline, single-threaded process; one embedded Ray; one tiny experiment, run for real."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

# Before any test imports torch: spinning OpenMP threads on shared cores make everything many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pipeline.console import quiet_libraries

quiet_libraries(offline=True)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of a bucket, `s3://…`, in an S3 server of this process; shared by all tests, each under its key."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    values = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    boto3.client("s3").create_bucket(Bucket="electra-test")
    yield "s3://electra-test"
    server.stop()
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="session")
def ray_session(object_store: str) -> Iterator[None]:
    """An embedded Ray with room for two workers, shared by all tests that ask for it. The store comes first, because
    workers inherit the environment that leads to it."""
    from cluster.session import session

    with session(num_cpus=2):
        yield


@pytest.fixture(scope="session")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A gloo group of this process alone: one for all tests, because DeepSpeed keeps the first it sees."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = "0"
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Road:
    """A working directory laid out as a person's: configs/quickstart.yaml (tiny), and runs/quickstart made by it."""

    folder: Path
    out: Path
    config: Path

    def electra(
        self, *arguments: str | Path, check: bool = True, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `electra` here, as a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


TOPICS = {
    "weather": ["rain", "cloud", "storm", "wind", "sun", "frost", "breeze", "thunder"],
    "kitchen": ["bread", "soup", "oven", "butter", "kettle", "spoon", "dough", "pepper"],
    "harbour": ["ship", "sail", "anchor", "tide", "captain", "rope", "lantern", "pier"],
}
VERBS = ["follows", "touches", "hides", "warms", "moves", "carries", "meets", "leaves"]
PLACES = ["near the old house", "before the long night", "under a grey roof", "beside the quiet road"]


def write_documents(path: Path, documents: int = 240) -> None:
    """Sentences about three topics, one JSON object a line; the same text every time."""
    lines = []
    for d in range(documents):
        topic = list(TOPICS)[d % len(TOPICS)]
        nouns = TOPICS[topic]
        sentences = [
            f"The {nouns[(d + 3 * s) % 8]} {VERBS[(d // 3 + s * s) % 8]} the {nouns[(d // 8 + 5 * s + 1) % 8]} "
            f"{PLACES[(d + s) % 4]} on day {d} of the {nouns[(d * s) % 8]}."
            for s in range(10)
        ]
        lines.append(json.dumps({"text": " ".join(sentences), "topic": topic}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def lay_out(folder: Path) -> Road:
    """A tiny experiment that takes every stage of the real road: two arms, two budgets, two workers."""
    shutil.copytree(ROOT / "configs", folder / "configs", ignore=shutil.ignore_patterns("quickstart.yaml"))
    write_documents(folder / "documents.jsonl")
    tiny = {
        "name": "quickstart",
        "corpus": {
            "sources": [{"kind": "jsonl", "path": str(folder / "documents.jsonl"), "topic_field": "topic"}],
            "tokenizer": {"kind": "wordpiece", "vocab_size": 300},
            "seq_len": 32,
            "heldout_fraction": 0.3,
            "unit_bytes": 20_000,
            "rows_per_shard": 256,
        },
        "model": {
            "embedding_size": 16,
            "hidden_size": 32,
            "num_layers": 1,
            "num_heads": 2,
            "intermediate_size": 64,
            "max_positions": 64,
        },
        "training": {
            "global_batch": 16,
            "micro_batch": 8,
            "log_every": 2,
            "eval_rows": 32,
            "checkpoints": {"every": 5, "keep_last": 99},
        },
        "arms": [
            {"objective": "electra", "learning_rate": 1e-3, "generator": {"width": 0.5}},
            {"objective": "bert", "learning_rate": 1e-3},
        ],
        "budgets": [3e8, 9e8],
        "cluster": {"num_workers": 2, "threads_per_worker": 1},
        "evaluation": {
            "tasks": ["sentence_order", "source_topic"],
            "protocol": {"epochs": 1, "max_train_examples": 64, "max_length": 32},
            "probes": {"dev_examples": 60, "train_examples": 120, "topics": 3},
        },
    }
    config = folder / "configs" / "quickstart.yaml"
    config.write_text(yaml.safe_dump(tiny), encoding="utf-8")
    return Road(folder=folder, out=folder / "runs" / "quickstart", config=config)


@pytest.fixture(scope="session")
def road(tmp_path_factory: pytest.TempPathFactory) -> Road:
    """The tiny experiment after `electra quickstart`; its output is beside it in quickstart.txt."""
    road = lay_out(tmp_path_factory.mktemp("road"))
    done = road.electra("quickstart", "--config", road.config)
    (road.folder / "quickstart.txt").write_text(done.stdout, encoding="utf-8")
    return road
