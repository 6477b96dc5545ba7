"""Checkpoints in an object store: saved, chosen, restored and pruned there, also where it fails every third request."""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from data_prep import storage
from data_prep.errors import CheckpointError, PreflightError
from tests.training.runs import ELECTRA, spec_for
from tests.training.saved import at, engine, fill, saver, spec, take
from training import checkpoints, run_folder
from training.checkpoints import load_objective, load_tensors
from training.engine import Engine
from training.settings import CheckpointConfig

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def one(process_group: None) -> Iterator[Engine]:
    with engine() as built:
        yield built


class Flaky:
    """The store of the tests behind another address, which answers every third request with 503."""

    def __init__(self) -> None:
        self._store = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.requests, self.refused = 0, 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            self.requests += 1
            refuses = self.requests % 3 == 0
            self.refused += refuses
        if not refuses:
            return self._store(environ, start_response)
        body = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
        start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]


@pytest.fixture
def flaky(object_store: str) -> Iterator[tuple[Flaky, str]]:
    """It and the options of its address."""
    app = Flaky()
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield app, f"endpoint_override=127.0.0.1:{server.port}&scheme=http"
    server.shutdown()


def test_a_run_may_keep_its_checkpoints_in_a_store(
    one: Engine, object_store: str, corpus: Path, tmp_path: Path
) -> None:
    address = f"{object_store}/{uuid.uuid4().hex}"
    run_dir = tmp_path / "a-run"
    run_dir.mkdir()
    config = CheckpointConfig(to=address)
    store = checkpoints.store(run_dir, config)
    assert str(store) == f"{address}/a-run"
    assert str(checkpoints.store_of(run_dir)) == str(run_dir / "checkpoints")  # of a run that nobody has started
    run_folder.write_run_record(run_dir, spec_for(ELECTRA, corpus, checkpoints={"to": address}))
    assert str(checkpoints.store_of(run_dir)) == str(store)

    saving = saver(store, one, corpus, keep_last=2, keep_best=False)
    for step in (1, 2, 3):
        fill(one, float(step))
        outcome = take(saving, step)
        assert outcome.saved and outcome.pruned == (["step-00000001"] if step == 3 else [])
    assert [entry.name for entry in checkpoints.listing(store, verify=True)] == ["step-00000002", "step-00000003"]
    part = at(store, 3).manifest["parts"][0]["name"]
    store.sub("step-00000003").write_bytes(part, b"something else")
    with pytest.raises(CheckpointError, match=f"{address}/a-run/step-00000003/{part} was cut or altered"):
        at(store, 3)
    found, passed_over = checkpoints.choose(store)
    assert found is not None and found.progress.step == 2 and len(passed_over) == 1
    assert [name.partition("/")[0][:21] for name in store.names("") if part in name] == [
        "step-00000002",
        "step-00000003.broken-",
    ]
    checkpoints.restore(one, found)
    checkpoints.prove(one, found, "rows 2")
    objective, same = load_objective(str(found))
    assert same.sha256 == found.sha256 and {p.unique().item() for p in objective.parameters()} == {2.0}
    figures = checkpoints.preflight(store, one.objective, spec(corpus))
    assert figures["free_bytes"] is None and figures["mb_per_second"] > 0
    assert store.size(".probe") is None and not [name for name in store.names() if "probe" in name]


@pytest.mark.slow  # a fifth of a second after every refusal
def test_a_store_that_fails_every_third_request_costs_time_and_nothing_else(
    one: Engine, flaky: tuple[Flaky, str], object_store: str, corpus: Path, tmp_path: Path
) -> None:
    server, options = flaky
    store = checkpoints.store(tmp_path / "run", CheckpointConfig(to=f"{object_store}/{uuid.uuid4().hex}?{options}"))
    fill(one, 1.0)
    outcome = take(saver(store, one, corpus), 1)
    assert outcome.saved, outcome.reason
    found, passed_over = checkpoints.choose(store)
    assert found is not None and (found.progress.step, passed_over) == (1, [])
    assert {t.unique().item() for t in load_tensors(found, ("exp_avg_sq",))["exp_avg_sq"].values()} == {1.5}
    assert server.refused > 5


def test_a_store_that_takes_nothing_costs_a_saving(one: Engine, object_store: str, corpus: Path) -> None:
    store = storage.folder("s3://no-such-bucket/run")
    outcome = take(saver(store, one, corpus), 1)
    assert not outcome.saved and outcome.reason is not None and "no-such-bucket" in outcome.reason
    with pytest.raises(PreflightError, match="Cannot write to s3://no-such-bucket/run"):
        checkpoints.preflight(store, one.objective, spec(corpus))
