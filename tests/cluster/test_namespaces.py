"""Two Ray nodes in two network namespaces, a worker on each: one is cut off, training goes on with the other, and grows
again when it is back. Skipped, saying so, without the privilege."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.oversight import last_step
from tests.cluster.driver import ENVIRONMENT, command, told
from tests.cluster.namespaces import Nodes, lacking, two_nodes, wait_for
from tests.training.runs import ELECTRA, spec_for
from tests.training.synthetic import write_corpus
from training import requests

pytestmark = [pytest.mark.multi, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    if (reason := lacking()) is not None:
        pytest.skip(reason)
    with two_nodes() as nodes:
        yield nodes


def started(run: Path) -> list[tuple[int, int]]:
    """World size and step of every attempt."""
    return [(event["world_size"], event["step"]) for event in told(run, "started")]


def test_a_node_that_is_cut_off_and_comes_back(nodes: Nodes, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    spec = spec_for(ELECTRA, tmp_path / "corpus", 100_000, log_every=20, checkpoints={"every": 20})
    run = tmp_path / "runs" / spec.name
    nodes.start_head()
    wait_for(lambda: nodes.alive() == 1, 60, "the head is there")
    nodes.start_other()
    wait_for(lambda: nodes.alive() == 2, 60, "both nodes are there")
    elastic: dict[str, Any] = {"num_workers": 2, "min_workers": 1, "resize_seconds": 3.0}
    words = command(spec, tmp_path / "corpus", tmp_path / "runs", address=nodes.address, **elastic)
    driver = nodes.run(words, ENVIRONMENT)
    wait_for(lambda: [world for world, _ in started(run)] == [2] and len(told(run, "saved")) > 2, 180, "two train")
    nodes.cut()
    wait_for(lambda: [world for world, _ in started(run)] == [2, 1], 180, "one goes on")
    saved = len(told(run, "saved"))
    wait_for(lambda: len(told(run, "saved")) > saved + 2, 120, "one makes progress")
    nodes.mend()
    nodes.start_other()  # as whoever supervises it does: Ray's own ends when the head has given it up
    wait_for(lambda: [world for world, _ in started(run)] == [2, 1, 2], 240, "two train again")
    requests.ask(tmp_path / "runs", "stop", "the test is over")
    assert driver.wait(120) == 75
    (failed,) = told(run, "failed")
    assert failed["ranks"] in ([0], [1]), failed
    (_, first), (_, second), (_, third) = started(run)
    last_of_one = [event["step"] for event in told(run, "saved") if event["step"] <= third][-1]
    assert first == 0 < second < third == last_of_one  # growing saved first: no step was lost


def test_a_node_that_is_drained_and_a_head_that_is_restarted(nodes: Nodes, tmp_path: Path) -> None:
    """No checkpoint is due: what is saved is what the drain asked for."""
    write_corpus(tmp_path / "corpus")
    spec = spec_for(ELECTRA, tmp_path / "corpus", 100_000, log_every=20, checkpoints={"every": 100_000})
    run = tmp_path / "runs" / spec.name
    nodes.start_head()
    wait_for(lambda: nodes.alive() == 1, 60, "the head is there")
    nodes.start_other()
    wait_for(lambda: nodes.alive() == 2, 60, "both nodes are there")
    elastic: dict[str, Any] = {"num_workers": 2, "min_workers": 1, "resize_seconds": 600.0}
    words = command(spec, tmp_path / "corpus", tmp_path / "runs", address=nodes.address, **elastic)
    driver = nodes.run(words, ENVIRONMENT)
    wait_for(lambda: last_step(run) >= 20, 180, "two train")
    nodes.drain()
    wait_for(lambda: len(told(run, "saved")) == 1, 60, "the drain is answered by a checkpoint")
    (saved,) = told(run, "saved")
    wait_for(lambda: last_step(run) > saved["step"], 60, "training goes on")
    nodes.kill(1)  # the second node, as announced
    wait_for(lambda: started(run) == [(2, 0), (1, saved["step"])], 180, "one goes on from there")
    requests.ask(tmp_path / "runs", "save", "the test asks")
    wait_for(lambda: len(told(run, "saved")) == 2, 60, "it saves when asked")
    nodes.kill(0)
    nodes.start_head()
    last = told(run, "saved")[1]["step"]
    wait_for(lambda: driver.poll() is not None or started(run)[2:] == [(1, last)], 240, "it goes on with the new head")
    requests.ask(tmp_path / "runs", "stop", "the test is over")
    assert driver.wait(120) == 75
    lost, headless = told(run, "failed")
    assert lost["ranks"] and headless["reason"].startswith("Ray: "), (lost, headless)
