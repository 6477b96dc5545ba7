"""What a scrape of Ray's metrics endpoint finds of training."""

import re
import urllib.request
from pathlib import Path

import pytest
from ray.train import WorkerGroupError

from cluster import trainer
from cluster.exposed import GAUGES, RESTARTS, STEP, STEPS, Exposed
from cluster.worker import Assignment
from tests.cluster.namespaces import wait_for
from tests.conftest import ROOT
from tests.pipeline.stories import specification

pytestmark = pytest.mark.usefixtures("ray_session")

EXPORT_SECONDS = 60.0  # Ray sends every ten
_SAMPLE = re.compile(r'^ray_(electra_\w+)\{.*\brun="([^"]*)".*\} (\S+)$')


def scraped() -> dict[tuple[str, str], float]:
    """Our samples on the node of this process, by name and run."""
    import ray

    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            text = answer.read().decode()
    except OSError:  # the agent is still starting
        return {}
    found = filter(None, map(_SAMPLE.match, text.splitlines()))
    return {(one[1], one[2]): float(one[3]) for one in found}


@pytest.mark.slow
@pytest.mark.multi
def test_a_scrape_finds_the_newest_line_of_each_run() -> None:
    exposed, followed = Exposed(), []
    follow = exposed.following(lambda spec, line: followed.append((spec.name, line["step"])))
    values = {
        "train/loss": 2.5, "heldout/loss": 2.75, "tokens_per_second": 1234.5, "mfu": 0.41, "data_wait": 0.02,
        "flops": 1e12, "learning_rate": 1e-3,
    }  # fmt: skip
    first, second = specification("scraped-a", 40), specification("scraped-b", 50)
    follow(first, {"step": 10, "values": {**values, "train/loss": 9.0}})
    follow(first, {"step": 20, "values": values})
    follow(
        second, {"step": 5, "values": {"train/loss": 3.5}}
    )  # of a device whose peak nobody knows, and no held-out rows
    exposed.restarted("scraped-b")
    exposed.restarted("scraped-b")
    assert followed == [("scraped-a", 10), ("scraped-a", 20), ("scraped-b", 5)]
    wait_for(lambda: ("electra_restarts_total", "scraped-b") in scraped(), EXPORT_SECONDS, "the metrics are exposed")
    found = {sample: value for sample, value in scraped().items() if sample[1].startswith("scraped-")}
    assert found == {
        ("electra_step", "scraped-a"): 20.0,
        ("electra_steps", "scraped-a"): 40.0,
        ("electra_loss", "scraped-a"): 2.5,
        ("electra_heldout_loss", "scraped-a"): 2.75,
        ("electra_tokens_per_second", "scraped-a"): 1234.5,
        ("electra_mfu", "scraped-a"): 0.41,
        ("electra_data_wait", "scraped-a"): 0.02,
        ("electra_flops", "scraped-a"): 1e12,
        ("electra_step", "scraped-b"): 5.0,
        ("electra_steps", "scraped-b"): 50.0,
        ("electra_loss", "scraped-b"): 3.5,
        ("electra_restarts_total", "scraped-b"): 2.0,
    }


def test_a_group_that_is_started_again_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups are lost, the third trains to the end."""
    lost = WorkerGroupError("", {0: RuntimeError("a worker died")})
    ends = [lost, lost, None]

    def fit(*_: object) -> None:
        if (error := ends.pop(0)) is not None:
            raise error

    counted: list[str] = []
    monkeypatch.setattr(trainer, "_fit", fit)
    monkeypatch.setattr(trainer, "_pause", lambda *_: None)
    spec = specification("x", 40)
    trainer._train(Assignment(specs=[spec], runs_dir=tmp_path), trainer.ClusterConfig(max_failures=3), counted.append)
    assert (counted, ends) == (["x", "x"], [])


def test_what_ray_refuses_does_not_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("the node is gone")

    exposed, followed = Exposed(), []
    monkeypatch.setattr("ray.util.metrics.Metric._record", refuse)
    exposed.following(lambda spec, line: followed.append(spec.name))(
        specification("x", 40), {"step": 1, "values": {"train/loss": 1.0}}
    )
    exposed.restarted("x")
    assert followed == ["x"]


def test_every_name_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    names = [name for name, _ in (STEP, STEPS, *GAUGES.values())] + [f"{RESTARTS[0]}_total"]
    assert [name for name in names if f"`ray_{name}`" not in page] == []
