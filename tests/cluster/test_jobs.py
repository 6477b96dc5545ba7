"""Jobs, ids, lines and endings without a cluster; a real one is in tests/pipeline/test_submit_ray.py."""

import re
from typing import Any

import pytest

from cluster import jobs
from data_prep.errors import ConfigError, DataError, PreflightError
from tests.cluster.ray_head import free_ports


class FakeClient:
    """Ray's client as far as jobs are listed and submitted; `taken`: an id that somebody else submits meanwhile."""

    def __init__(self, statuses: dict[str, str], taken: str | None = None) -> None:
        self.statuses, self.taken, self.sent = statuses, taken, list[dict[str, Any]]()

    def list_jobs(self) -> list[Any]:
        return [self.get_job_info(name) for name in self.statuses]

    def get_job_info(self, name: str) -> Any:
        from ray.job_submission import JobDetails, JobType

        started = 1000 * (1 + list(self.statuses).index(name))
        return JobDetails(
            type=JobType.SUBMISSION, submission_id=name, entrypoint="x", status=self.statuses[name],
            start_time=started, metadata={"out": f"/shared/runs/{name[:1]}"},
        )  # fmt: skip

    def submit_job(self, **arguments: Any) -> None:
        name = arguments["submission_id"]
        if name == self.taken:
            self.statuses[name] = "PENDING"
        if name in self.statuses:
            raise RuntimeError(f"Request failed with status code 400: Job with submission_id {name} already exists.")
        self.sent.append(arguments)
        self.statuses[name] = "PENDING"


def cluster(statuses: dict[str, str], taken: str | None = None) -> tuple[jobs.Cluster, FakeClient]:
    found, client = jobs.Cluster.__new__(jobs.Cluster), FakeClient(statuses, taken)
    found.address, found._client = "http://fake:8265", client
    return found, client


REQUEST = jobs.Request(
    submission_id="a-1", entrypoint="x", working_dir=".", excludes=(".git",), environment={}, metadata={"out": "/o"}
)


@pytest.mark.parametrize(
    ("before", "again", "expected"),
    [
        ({}, False, ("a-1", True)),
        ({"a-1": "PENDING"}, False, ("a-1", False)),
        ({"a-1": "RUNNING"}, True, ("a-1", False)),  # not twice at once, whatever is asked
        ({"a-1": "SUCCEEDED"}, False, ("a-1", False)),
        ({"a-1": "SUCCEEDED"}, True, ("a-1-r2", True)),
        ({"a-1": "STOPPED"}, False, ("a-1-r2", True)),
        ({"a-1": "FAILED", "a-1-r2": "FAILED", "b": "RUNNING"}, False, ("a-1-r3", True)),
        ({f"a-1-r{n}" if n > 1 else "a-1": "FAILED" for n in range(1, 11)}, False, ("a-1-r11", True)),
        ({"a-1-r2": "RUNNING", "a-12": "RUNNING"}, False, ("a-1-r2", False)),
    ],
)
def test_the_same_work_is_submitted_once_and_a_retry_says_so(
    before: dict[str, str], again: bool, expected: tuple[str, bool]
) -> None:
    found, client = cluster(dict(before))
    job, now = found.submit(REQUEST, again)
    assert (job.id, now) == expected
    assert [sent["submission_id"] for sent in client.sent] == ([job.id] if now else [])
    assert [sent["metadata"]["try"] for sent in client.sent] == ([str(job.number)] if now else [])


@pytest.mark.parametrize(("heard", "breaks", "sendings"), [(False, 1, 2), (True, 1, 1), (False, 9, 3)])
def test_a_dashboard_that_breaks_off(heard: bool, breaks: int, sendings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has taken all the same is found, and what it has not is sent again, thrice at most."""
    found, client = cluster({"a-1": "FAILED"})
    tried: list[str] = []

    class Breaking(FakeClient):
        def submit_job(self, **arguments: Any) -> None:
            tried.append(arguments["submission_id"])
            if heard or len(tried) > breaks:
                super().submit_job(**arguments)
            if len(tried) <= breaks:
                raise ConnectionError("('Connection aborted.', RemoteDisconnected('without response'))")

    found._client = Breaking(client.statuses)
    monkeypatch.setattr("time.sleep", lambda _: None)
    if breaks > 3:
        with pytest.raises(PreflightError, match=r"^no Ray dashboard answers at http://fake:8265"):
            found.submit(REQUEST, again=False)
    else:
        job, now = found.submit(REQUEST, again=False)
        assert (job.id, job.number, now) == ("a-1-r2", 2, True)
    assert tried == ["a-1-r2"] * sendings


def test_two_who_submit_at_once_have_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.0)
    found, client = cluster({}, taken="a-1")
    job, now = found.submit(REQUEST, again=False)
    assert (job.id, now, client.sent) == ("a-1", False, [])


def test_a_job_is_found_by_its_id_its_folder_and_a_run_in_it() -> None:
    found, _ = cluster({"a-1": "FAILED", "b-1": "RUNNING", "a-1-r2": "RUNNING"})
    assert found.find("a-1").id == "a-1"
    assert found.find("/shared/runs/a").id == "a-1-r2"  # the newest
    assert found.find("/shared/runs/a/runs/electra-300steps-s0").id == "a-1-r2"
    with pytest.raises(DataError, match=r"no job of that id or folder .* the newest there: a-1-r2, b-1, a-1$"):
        found.find("/shared/runs/c")


def test_lines_are_told_once_whatever_is_told_again() -> None:
    told: list[str] = []
    lines = jobs._Lines(told.append)
    lines.add("one\ntw")
    lines.add("o\nthr")
    assert told == ["one", "two"]
    lines.begin()  # the connection broke: from the beginning
    lines.add("one\n")
    lines.add("two\nthree\n")
    lines.rest("one\ntwo\nthree\nfour")
    assert told == ["one", "two", "three", "four"]


def test_the_ending_is_the_last_line_that_has_an_exit_code() -> None:
    lines = ['{"exit_code": 0}', "[1]", '{"exit_code": 75, "error": "stopped"}', '{"step": 3}', "{torn", "75"]
    assert jobs.told_ending(lines) == {"exit_code": 75, "error": "stopped"}
    assert jobs.told_ending(["75", "{}"]) is None


def test_a_dashboard_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(jobs.ADDRESS, raising=False)
    (port,) = free_ports(1)
    with pytest.raises(PreflightError, match=f"no Ray dashboard answers at http://127.0.0.1:{port} .*refused"):
        jobs.Cluster(f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="give --address http://HEAD:8265, or set RAY_API_SERVER_ADDRESS"):
        jobs.Cluster()
    for bad in ("ray://head:10001", "http://head:99999", "head:port", "http://[::1", "http://:8265"):
        with pytest.raises(ConfigError, match=re.escape(f"--address {bad}: not a dashboard's address")):
            jobs.Cluster(bad)
    monkeypatch.setenv(jobs.ADDRESS, "https://head/ray/")
    assert jobs.resolve(None) == "https://head/ray"
    assert jobs.resolve("other:1") == "http://other:1"  # what is given counts more
