"""A tracking server that is away, slow, broken or refuses: one sentence, a few seconds, and nothing lost."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline import tracking_cursor
from pipeline.tracking import SyncSummary, sync
from tests.pipeline.mlflow_rows import Warnings, rows
from tests.pipeline.test_cli import electra, refused

UNAUTHENTICATED = "You are not authenticated. Please see https://www.mlflow.org/docs/latest/auth/index.html"
CREDENTIALS = "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


@pytest.fixture
def out(tracked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    return tracked


@contextmanager
def answering(status: int, body: str, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that answers everything alike, and the credentials that it was given."""
    given: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", given
        server.shutdown()


def synced(out: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> tuple[SyncSummary, str, float]:
    """The summary, the one warning, and the seconds that it took."""
    console, started = Warnings(), time.monotonic()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:secret@{address}")
    summary = sync(out, console=console)
    (text,) = console.texts
    assert summary.problem == text
    assert "secret" not in text + summary.uri + (out / tracking_cursor.FILE_NAME).read_text()
    assert text.startswith(f"MLflow at http://{address}: ")
    assert text.endswith(f"; nothing is lost, `electra sync {out}` sends what is missing.")
    return (
        summary,
        text.removeprefix(f"MLflow at http://{address}: ").partition("; nothing is lost")[0],
        (time.monotonic() - started),
    )


def test_a_dead_server_costs_one_warning(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    summary, text, seconds = synced(out, address, monkeypatch)
    assert (summary.reachable, text) == (False, "nobody answers at that address")
    assert seconds < 10


def test_a_server_that_takes_requests_and_never_answers_costs_seconds(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        _, text, seconds = synced(out, f"127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
    assert text == "it gives no answer in time"
    assert seconds < 10  # two tries of a second each, and a second between


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, "Internal Server Error", "it answers with errors (500)"),
        (503, "", "it answers with errors (503)"),
        (401, UNAUTHENTICATED, f"it does not accept the credentials (401): {CREDENTIALS}"),
        (
            401,
            json.dumps({"error_code": "UNAUTHENTICATED", "message": "someone:secret is nobody"}),
            f"it does not accept the credentials (401): {CREDENTIALS}",
        ),
        (
            403,
            "Permission denied",
            f"it does not allow this with these credentials (403): ask for the right to write, or {CREDENTIALS}",
        ),
        (404, "<html>nginx</html>", "there is no MLflow at that address (404)"),
    ],
    ids=["500", "503", "401 as text", "401 as JSON", "403", "404"],
)
def test_a_server_that_refuses_costs_one_sentence(
    out: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: str, words: str
) -> None:
    with answering(status, body, Retry_After="3600") as (address, given):
        _, text, seconds = synced(out, address, monkeypatch)
    assert text == words
    assert given[0].startswith("Basic ")
    assert seconds < 10  # whatever it says of when to come back


def test_a_wrong_token_is_not_repeated(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "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")
    with answering(401, "no: 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") as (address, given):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{address}")
        problem = sync(out).problem
    assert given == ["Bearer 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"]
    assert problem is not None
    assert "(401)" in problem
    assert "hf_real" not in problem


def test_the_verb_ends_with_3_where_the_server_takes_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(500, "") as (address, _):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{address}")
        assert "it answers with errors (500); nothing is lost" in refused(3, "sync", out)


def test_the_verb_sends_what_is_missing_and_then_nothing(out: Path) -> None:
    run = out / "runs" / "electra-4.00e+11-s0"
    done = electra("sync", run, "--json")
    first = json.loads(done.stdout)
    assert (first["verb"], first["exit_code"], first["runs"], first["finetunings"]) == ("sync", 0, 1, 1)
    assert first["points"] == rows(out, "select count(*) from metrics")[0][0]
    names = [name for (name,) in rows(out, "select name from runs")]
    assert names == ["electra-4.00e+11-s0", "sentence_order 0 · electra-4.00e+11-s0"]
    said = [electra("sync", target).stdout for target in (out / "runs", out)]
    assert all("1 run and 1 fine-tuning in MLflow at sqlite:///" in text for text in said)
    assert all("no value was missing" in text for text in said)
    assert "tiny" in [name for (name,) in rows(out, "select name from runs")]


def test_the_verb_names_a_folder_that_is_not_there(out: Path) -> None:
    assert refused(4, "sync", out / "nowhere").endswith("does not exist; name an experiment's folder (OUT) or a run's.")
