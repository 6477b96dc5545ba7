"""A real `mlflow server` that freezes, answers late, is killed and comes back: nothing lost, nothing doubled, and
training goes on as if it were not there. Takes minutes: the server alone needs half of one to start.
"""

import itertools
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.mlflow_store import Store
from pipeline.tracking import sync
from tests.conftest import ROOT, Road, lay_out
from tests.pipeline.mlflow_server import Server
from training.metrics import read_metrics

pytestmark = pytest.mark.long
Held = dict[str, dict[str, list[tuple[Any, ...]]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    shutil.copy(empty_store, found.database)
    with found:
        yield found


def held(database: Path, experiment: str) -> Held:
    """What a store holds of an experiment, by its runs' names: without ids, and without runs that were removed."""
    runs = (
        "from runs r join experiments e using (experiment_id) {} "
        f"where e.name = '{experiment}' and r.lifecycle_stage = 'active'"
    )
    queries = {
        "runs": "select r.name, r.status, r.start_time, r.end_time " + runs.format(""),
        "metrics": "select r.name, m.key, m.value, m.timestamp, m.step "
        + runs.format("join metrics m on m.run_uuid = r.run_uuid"),
        "params": "select r.name, p.key, p.value " + runs.format("join params p on p.run_uuid = r.run_uuid"),
        "tags": "select r.name, t.key, t.value " + runs.format("join tags t on t.run_uuid = r.run_uuid"),
        "data": "select r.name, i.source_id is not null "
        + runs.format("join inputs i on i.destination_id = r.run_uuid"),
    }
    with sqlite3.connect(database) as connection:
        found = {name: connection.execute(query).fetchall() for name, query in queries.items()}
    names = sorted(name for name, *_ in found["runs"])
    assert len(names) == len(set(names)), f"runs that are there twice: {names}"
    return {
        run: {
            name: sorted(
                row[1:] for row in rows if row[0] == run and row[1] not in ("mlflow.parentRunId", "mlflow.user")
            )
            for name, rows in found.items()
        }
        for run in names
    }


@contextmanager
def locked(server: Server) -> Iterator[None]:
    """Its database takes no writes: what it is asked it does when the block ends, however long the asker waited."""
    with closing(sqlite3.connect(server.database)) as connection:
        connection.execute("begin immediate")
        yield


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.freeze()
    yield
    server.thaw()


@pytest.mark.parametrize(
    ("away", "step"),
    [
        *((locked, step) for step in ("open", "use", "describe", "_send", "set_status")),
        *((frozen, step) for step in ("open", "_send", "attach")),
    ],
)
def test_answers_that_come_too_late_double_nothing(
    tracked: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    away: Callable[[Server], AbstractContextManager[None]],
    step: str,
) -> None:
    """From the first request of a kind on, nothing is answered in time; what is done late is done for every try."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    name = f"{away.__name__}-{step}"
    (tracked / "config.yaml").write_text(f"name: {name}\narms: [{{objective: electra}}]\nbudgets: [4.0e+11]\n")
    sync(tracked)
    expected = held(tracked / "mlflow.db", name)
    assert len(expected) == 3
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    real: Callable[..., Any] = getattr(Store, step)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:

        def interrupted(*arguments: Any, **options: Any) -> Any:
            stack.enter_context(away(server))
            return real(*arguments, **options)

        patch.setattr(Store, step, interrupted)
        problem = sync(tracked).problem
    assert problem is not None
    assert "it gives no answer in time" in problem
    time.sleep(3)  # it does now what it was asked
    if (away, step) == (locked, "open"):
        assert twins(server.database, name) == 2
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT")
    for _ in range(2):
        assert sync(tracked, thorough=True).reachable
        assert held(server.database, name) == expected
    assert files(server, name) == ["config.yaml", "done.json", "manifest.json", "run.json"]


def twins(database: Path, experiment: str) -> int:
    with closing(sqlite3.connect(database)) as connection:
        query = "select count(*) from runs join experiments using (experiment_id) where experiments.name = ?"
        return int(connection.execute(query, (experiment,)).fetchone()[0])


def files(server: Server, experiment: str) -> list[str]:
    with closing(sqlite3.connect(server.database)) as connection:
        query = "select experiment_id from experiments where name = ?"
        number = connection.execute(query, (experiment,)).fetchone()[0]
    return sorted(path.name for path in (server.folder / "artifacts").glob(f"{number}/*/artifacts/*"))


# --- training ---------------------------------------------------------------------------------------------------------

QUICK = (
    "import pipeline.tracking_live as live; live.MIRROR_SECONDS = 2.0; live.LONGEST_PAUSE = 8.0; "
    "from pipeline.cli import main; main()"
)
BUDGET = 1.5e11  # two minutes on a quiet core
SETTINGS = [
    "arms=[{objective: electra, learning_rate: 1e-3, generator: {width: 0.5}}]",
    f"budgets=[{BUDGET}]",
    "cluster.num_workers=0",
    "training.checkpoints.every=50",
    "training.checkpoints.keep_last=2",
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Road:
    road = lay_out(tmp_path_factory.mktemp("training"))
    road.electra("prepare", road.config, *SETTINGS)
    return road


def wait_for(what: Callable[[], bool], training: "subprocess.Popen[str]", seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert training.poll() is None, "training has ended already; give it more FLOPs"
        assert time.monotonic() < until
        time.sleep(0.2)


def points(database: Path, run: str) -> list[tuple[str, int, int, float]]:
    """(name, step, time, value) of every point of the run, those that MLflow would show twice too."""
    query = (
        "select m.key, m.step, m.timestamp, m.value from metrics m join runs r using (run_uuid) "
        "join experiments e using (experiment_id) where e.name = 'quickstart' and r.name = ?"
    )
    with sqlite3.connect(database) as connection:
        return sorted(connection.execute(query, (run,)).fetchall())


def gaps(lines: list[dict[str, Any]], since: float, until: float) -> list[float]:
    """Seconds between the lines of a stretch of time."""
    times = [line["time"] for line in lines if since <= line["time"] <= until]
    return [after - before for before, after in itertools.pairwise(times)]


def test_training_does_not_notice_a_server_that_freezes_and_dies(prepared: Road, server: Server) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": server.address}
    distinct = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}  # far from what a busy machine makes a step wait
    run = prepared.out / "runs" / f"electra-{BUDGET:.2e}-s0"
    log = prepared.folder / "train.txt"
    with open(log, "w", encoding="utf-8") as output:
        training = subprocess.Popen(
            [sys.executable, "-c", QUICK, "train", prepared.config, *SETTINGS],
            cwd=prepared.folder, env={**environment, **distinct}, stdout=output, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    try:
        wait_for(lambda: len(points(server.database, run.name)) > 200, training)
        first_lines = time.time()
        time.sleep(10)
        frozen = time.time()
        server.freeze()
        time.sleep(30)  # a call of the mirror times out, twice
        killed = time.time()
        server.kill()
        assert training.wait(timeout=600) == 0
        ended = time.time()
    finally:
        training.kill()
        server.kill()
    lines = read_metrics(run)
    there, away = gaps(lines, first_lines, frozen), gaps(lines, frozen, ended)
    print(
        f"\nseconds between lines, median and most: with the server {statistics.median(there):.3f}, {max(there):.2f}; "
        f"while it was frozen and dead ({ended - frozen:.0f} s) {statistics.median(away):.3f}, {max(away):.2f}"
    )
    assert lines[-1]["time"] - killed > 15.0, "training has ended too soon; give it more FLOPs"
    assert max(away) < 8.0  # a request that training waited for would take 10 s, and 10 s again
    assert statistics.median(away) < 1.5 * statistics.median(there)
    assert ended - (run / "done.json").stat().st_mtime < 30.0
    text = log.read_text(encoding="utf-8")
    assert text.count(f"MLflow at {server.address}: ") <= 2  # once while training, once by the tracking stage
    assert f"MLflow at {server.address}: nobody answers at that address; nothing is lost" in text
    before = points(server.database, run.name)
    expected = everything_written(run, lines)
    assert 200 < len(before) < len(expected) / 2
    assert max(step for _, step, *_ in before) < max(line["step"] for line in lines if line["time"] < killed) + 1

    server.start()
    done = [sync_again(prepared, environment) for _ in range(2)]
    assert [one["points"] for one in done] == [len(expected) - len(before), 0]
    assert points(server.database, run.name) == expected
    assert set(held(server.database, "quickstart")) == {"quickstart", run.name}
    assert held(server.database, "quickstart")[run.name]["runs"][0][0] == "FINISHED"


def everything_written(run: Path, lines: list[dict[str, Any]]) -> list[tuple[str, int, int, float]]:
    """The points that the run's metric lines and its end amount to."""
    found = [
        (name, line["step"], round(1000 * line["time"]), float(value))
        for line in lines
        for name, value in [*line["values"].items(), ("attempt", line["attempt"])]
    ]
    done = json.loads((run / "done.json").read_text())
    names = ("flops_counted", "flops_spent", "flops_executed", "flops_paper", "tokens", "seconds", "tokens_per_second")
    when = round(1000 * lines[-1]["time"])
    return sorted(found + [(f"done/{name}", done["step"], when, float(done[name])) for name in names])


def sync_again(road: Road, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "sync", road.out, "--json"],
        cwd=road.folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
