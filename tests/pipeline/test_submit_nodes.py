"""Jobs on two Ray nodes in two network namespaces: training across both, one of them drained, and a corpus prepared by
both. Skipped, saying so, without the privilege."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.oversight import last_step
from data_prep import manifest as manifests
from pipeline import config as yaml_config
from pipeline.experiment import Experiment
from tests.cluster.driver import ENVIRONMENT, told
from tests.cluster.namespaces import HEAD, OTHER, Nodes, lacking, two_nodes, wait_for
from tests.pipeline.made_sources import hashes, write_sources
from tests.pipeline.test_cli import QUICKSTART
from tests.pipeline.test_submit_ray import SETTINGS
from tests.training.synthetic import write_corpus

pytestmark = [pytest.mark.multi, pytest.mark.slow, pytest.mark.long]

ELECTRA = [sys.executable, "-m", "pipeline.cli"]
STEPS = 100_000  # more than anyone waits for
RUN = f"electra-{STEPS}steps-s0"


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    if (reason := lacking()) is not None:
        pytest.skip(reason)
    with two_nodes() as nodes:
        nodes.start_head(dashboard=True)
        wait_for(lambda: nodes.alive() == 1, 60, "the head is there")
        nodes.start_other()
        wait_for(lambda: nodes.alive() == 2, 60, "both nodes are there")
        yield nodes


def submitted(nodes: Nodes, config: Path, *words: str | Path) -> "subprocess.Popen[bytes]":
    """`electra submit --wait`, beside the head."""
    where = ["--working-dir", str(config.parent), "--address", nodes.dashboard, "--wait"]
    return nodes.run([*ELECTRA, "submit", str(config), *map(str, words), *where], ENVIRONMENT)


def status(nodes: Nodes, out: Path) -> tuple[list[str], dict[str, Any]]:
    """Addresses of the nodes that `electra status` shows, and the one run of the folder."""
    words = [*ELECTRA, "status", str(out), "--address", nodes.dashboard, "--json"]
    inside = ["ip", "netns", "exec", nodes.first, *words]
    environment = {**nodes.environment, **ENVIRONMENT}
    told = json.loads(subprocess.run(inside, env=environment, capture_output=True, text=True, check=True).stdout)
    ((run,),) = [one["runs"] for one in told["experiments"]]
    return [node["address"] for node in told["cluster"]["nodes"]], run


def test_training_across_both_and_on_the_rest_when_one_is_drained(nodes: Nodes, tmp_path: Path) -> None:
    """No checkpoint is due: the first is what the drain asked for, the second what the stop of the job did."""
    config, out = tmp_path / "project" / "a.yaml", tmp_path / "shared"
    config.parent.mkdir()
    config.write_text(QUICKSTART.read_text(encoding="utf-8"), encoding="utf-8")
    write_corpus(out / "corpus", rows=200)
    run = out / "runs" / RUN
    elastic = ["cluster.num_workers=2", "cluster.min_workers=1", "cluster.resize_seconds=600"]
    rare = ["training.micro_batch=4", "training.checkpoints.every=100000"]
    job = submitted(nodes, config, *SETTINGS, f"steps={STEPS}", *elastic, *rare, "--out", out)
    wait_for(lambda: last_step(run) >= 20, 240, "two train")
    assert [event["world_size"] for event in told(run, "started")] == [2]  # one CPU a node: it is across both
    there, shown = status(nodes, out)
    assert (there, shown["run"], shown["state"], shown["restarts"]) == ([HEAD, OTHER], RUN, "training", [])
    assert shown["steps"] == STEPS and shown["step"] >= 20 and shown["checkpoint"] is None
    nodes.drain()
    wait_for(lambda: len(told(run, "saved")) == 1, 60, "the drain is answered by a checkpoint")
    (saved,) = told(run, "saved")
    nodes.kill(1)  # the second node, as announced
    resumed = [(2, 0), (1, saved["step"])]
    wait_for(lambda: [(e["world_size"], e["step"]) for e in told(run, "started")] == resumed, 240, "one goes on")
    wait_for(lambda: last_step(run) > saved["step"], 120, "one makes progress")
    there, shown = status(nodes, out)
    assert (there, shown["state"], len(shown["restarts"])) == ([HEAD], "training", 1)
    assert shown["checkpoint"]["step"] >= saved["step"]  # a new attempt answers the request that stands once more
    stop = nodes.run([*ELECTRA, "stop", str(run), "--now", "--address", nodes.dashboard], ENVIRONMENT)
    assert stop.wait(120) == 0
    assert job.wait(180) == 75
    assert told(run, "saved")[-1]["step"] == told(run, "stopped")[-1]["step"] > saved["step"]


def test_a_corpus_prepared_by_both_is_the_one_of_a_single_process(nodes: Nodes, tmp_path: Path) -> None:
    experiment = yaml_config.load(QUICKSTART, (), Experiment)
    corpus = write_sources(tmp_path / "sources")
    config = tmp_path / "project" / "a.yaml"
    config.parent.mkdir()
    config.write_text(yaml_config.dump(experiment.model_copy(update={"corpus": corpus})))
    python = [f"cluster.submit.python={sys.executable}", "cluster.submit.env=[PYTHONPATH]"]
    job = submitted(nodes, config, *python, "--verb", "prepare", "--out", tmp_path / "both")
    alone = [*ELECTRA, "prepare", str(config), "cluster.num_cpus=1", "--out", str(tmp_path / "one")]
    outside = {name: value for name, value in nodes.environment.items() if not name.startswith("GLOO")}
    assert subprocess.run(alone, env={**outside, **ENVIRONMENT}, check=False).returncode == 0
    assert job.wait(300) == 0
    both, one = (hashes(manifests.load(tmp_path / place / "corpus")) for place in ("both", "one"))
    assert len(one) > 2 and both == one
