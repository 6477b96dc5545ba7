"""The mirror while something trains: how often it asks a store, and what it says of one that fails."""

import io
from pathlib import Path

import pytest

from data_prep.errors import PreflightError
from pipeline import tracking, tracking_live
from pipeline.console import Console
from pipeline.tracking import SyncSummary
from pipeline.tracking_live import Mirror


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Server:
    """Stands in for `tracking.sync`: notes when it was asked, and fails while `away`."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.away, self.broken = clock, False, False
        self.asked: list[float] = []
        self.training: list[bool] = []

    def sync(self, _: Path, *, console: Mirror, training: bool, seconds: float) -> SyncSummary:
        assert seconds == 20.0
        self.asked.append(self.clock.now)
        self.training.append(training)
        if self.broken:
            raise PreflightError("mlflow.db cannot be used")
        problem = "MLflow is away" if self.away else None
        if problem is not None:
            console.warn(problem)
        return SyncSummary(uri="", runs=1, finetunings=0, points=1, changed=1, problem=problem)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    clock = Clock()
    found = Server(clock)
    monkeypatch.setattr(tracking_live, "time", clock)
    monkeypatch.setattr(tracking, "sync", found.sync)
    return found


def follow(mirror: Mirror, server: Server, seconds: int) -> None:
    """A metric line a second."""
    for _ in range(seconds):
        server.clock.now += 1.0
        mirror.now_and_then()


def test_a_server_that_is_away_is_told_of_once_and_asked_ever_more_seldom(server: Server) -> None:
    output = io.StringIO()
    mirror = Mirror(Path(), Console(output, interactive=False))
    follow(mirror, server, 65)
    server.away = True
    follow(mirror, server, 3600)
    # every 30 s; then after 60, 120, 240, 480 s, and then every ten minutes
    assert server.asked[:8] == [30.0, 60.0, 90.0, 150.0, 270.0, 510.0, 990.0, 1590.0]
    assert output.getvalue().count("MLflow is away") == 1
    server.away = False
    follow(mirror, server, 700)
    assert output.getvalue().count("MLflow answers again; what it missed is being sent") == 1
    assert server.asked[-1] - server.asked[-2] == 30.0
    server.away = True
    follow(mirror, server, 60)
    assert output.getvalue().count("MLflow is away") == 2


def test_a_store_of_ours_that_is_broken_is_a_warning_while_training(server: Server) -> None:
    output = io.StringIO()
    mirror = Mirror(Path(), Console(output, interactive=False))
    server.broken = True
    follow(mirror, server, 200)
    assert server.asked == [30.0, 90.0]
    assert output.getvalue().count("mlflow.db cannot be used") == 1


def test_an_early_end_closes_what_was_sent_where_the_server_still_answers(server: Server) -> None:
    mirror = Mirror(Path(), Console(io.StringIO(), interactive=False))
    mirror.close()
    assert server.training == []  # nothing was sent
    follow(mirror, server, 30)
    mirror.close()
    assert server.training == [True, False]
    server.away = True
    follow(mirror, server, 30)
    mirror.close()
    assert server.training == [True, False, True]  # the end of a command does not wait for a server that is away
