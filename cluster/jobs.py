"""Ray Jobs: submit, find, follow, stop, by the address of a cluster's dashboard.

A job is known by its submission id, which is made from the work (`pipeline.submit`), so that the same work is never
submitted twice at once: Ray refuses an id that it has. Another try at it is another id, with -r2, -r3 behind it.
Guarantees: whatever Ray answers is one sentence (`PreflightError` for a cluster that cannot be reached or wants another
token); the time that a job has to save when it is stopped is always sent with it. Jobs, their records and logs die with
the cluster's head: what a run came to is in its folder. Metadata and environment can be read by all who see the
dashboard: no secret belongs there. Loads no torch; Ray when first called.
"""

import asyncio
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from data_prep.errors import ConfigError, DataError, PreflightError

ADDRESS = "RAY_API_SERVER_ADDRESS"
_REACH_SECONDS = 10.0
_POLL_SECONDS = 0.5
_SENDINGS = 3  # of one request, where a dashboard breaks off, as a busy one does
_AGAIN_SECONDS = 2.0
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_TRY = re.compile(r"^(?P<work>.*?)(?:-r(?P<number>\d+))?$")


class _Taken(Exception):
    """Ray has a job of this id."""


class _Silent(PreflightError):
    """The dashboard gives no answer; whether it has heard the question, nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that is sent to Ray for one job."""

    submission_id: str
    entrypoint: str  # a command line for a shell
    working_dir: str
    excludes: tuple[str, ...]
    environment: dict[str, str]
    metadata: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """As Ray's client takes them."""
        return {
            "submission_id": self.submission_id,
            "entrypoint": self.entrypoint,
            "runtime_env": {
                "working_dir": self.working_dir,
                "excludes": list(self.excludes),
                "env_vars": self.environment,
            },
            "metadata": self.metadata,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What Ray says of a job."""

    id: str
    status: str  # PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED
    started: float  # seconds since the epoch
    message: str
    exit_code: int | None  # of the driver; Ray does not tell that of a stopped one
    metadata: dict[str, str]

    @property
    def ended(self) -> bool:
        return self.status in _ENDED

    @property
    def number(self) -> int:
        """Which try at its work it is, from 1."""
        return _numbered(self.id)[1]


def _numbered(submission_id: str) -> tuple[str, int]:
    parts = _TRY.match(submission_id)
    assert parts is not None, "the pattern matches everything"
    return parts["work"], int(parts["number"] or 1)


def resolve(address: str | None) -> str:
    """The URL of a dashboard: the address given, else that of the environment. ConfigError where there is none."""
    found = address or os.environ.get(ADDRESS)
    if not found:
        raise ConfigError(f"no cluster is named: give --address http://HEAD:8265, or set {ADDRESS}")
    url = found if "://" in found else f"http://{found}"
    if not _is_dashboard(url):
        raise ConfigError(f"--address {found}: not a dashboard's address; it reads http://HEAD:8265")
    return url.rstrip("/")


def _is_dashboard(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, a port beyond 65535
        return False


class Cluster:
    """The Ray Jobs of one cluster."""

    def __init__(self, address: str | None = None) -> None:
        """PreflightError where nobody answers there, or the token is not the cluster's."""
        self.address = resolve(address)
        _reach(self.address)
        logging.getLogger("ray").setLevel(logging.ERROR)  # it tells of packages and connections
        with self.sentences():
            from ray.job_submission import JobSubmissionClient

            # Ray prefers what the environment says to what it is given.
            before = os.environ.pop(ADDRESS, None), os.environ.pop("RAY_ADDRESS", None)
            try:
                self._client = JobSubmissionClient(self.address)
            finally:
                for name, value in zip((ADDRESS, "RAY_ADDRESS"), before, strict=True):
                    if value is not None:
                        os.environ[name] = value

    def ray_version(self) -> str:
        """The one that runs there."""
        with self.sentences():
            answer = self._client._do_request("GET", "/api/version")
            answer.raise_for_status()
            return str(answer.json()["ray_version"])

    def jobs(self) -> list[Job]:
        """All that were submitted as jobs, oldest first."""
        with self.sentences():
            found = self._client.list_jobs()
        return sorted((_job(one) for one in found if one.submission_id), key=lambda job: job.started)

    def of_work(self, work: str) -> list[Job]:
        """Every try at it, first to last."""
        return sorted((job for job in self.jobs() if _numbered(job.id)[0] == work), key=lambda job: job.number)

    def find(self, target: str) -> Job:
        """The newest job with this id, or that works in this folder or one above it. DataError where there is none."""
        jobs, place = self.jobs(), PurePath(os.path.abspath(target))
        found = [job for job in jobs if job.id == target] or [
            job for job in jobs if "out" in job.metadata and place.is_relative_to(job.metadata["out"])
        ]
        if not found:
            known = ", ".join(job.id for job in reversed(jobs[-5:])) or "none at all"
            raise DataError(f"{target}: no job of that id or folder at {self.address}; the newest there: {known}")
        return found[-1]

    def get(self, submission_id: str) -> Job:
        """As it is now."""
        with self.sentences():
            return _job(self._client.get_job_info(submission_id))

    def submit(self, request: Request, again: bool) -> tuple[Job, bool]:
        """Submit the work, or find it at work already; and whether it was submitted now. What has ended unfinished
        is tried again under an id that says so; what has succeeded only where `again` is asked for. Where the dashboard
        breaks off, its jobs tell whether it has taken the request, which is sent again where not."""
        sent, left = 0, _SENDINGS
        while True:
            tries = self.of_work(request.submission_id)
            if tries and tries[-1].number == sent:
                return tries[-1], True
            if tries and (not tries[-1].ended or (tries[-1].status == "SUCCEEDED" and not again)):
                return tries[-1], False
            number = tries[-1].number + 1 if tries else 1
            try:
                return self._submit(request, number), True
            except _Taken:  # by somebody else, between the two
                time.sleep(_POLL_SECONDS)
            except _Silent:
                sent, left = number, left - 1
                if left == 0:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _submit(self, request: Request, number: int) -> Job:
        name = request.submission_id if number == 1 else f"{request.submission_id}-r{number}"
        arguments = {**request.arguments(), "submission_id": name}
        arguments["metadata"] = {**request.metadata, "try": str(number)}
        with self.sentences():
            self._client.submit_job(**arguments)
        return self.get(name)

    def stop(self, submission_id: str) -> bool:
        """Have Ray send SIGTERM, and SIGKILL when the time that the job was given is over; False where it has ended."""
        with self.sentences():
            return bool(self._client.stop_job(submission_id))

    def logs(self, submission_id: str) -> str:
        """What it has written so far."""
        with self.sentences():
            return str(self._client.get_job_logs(submission_id))

    def follow(self, submission_id: str, write: Callable[[str], None]) -> Job:
        """Hand on what it writes, from the beginning, line by line until it ends; how it ended."""
        lines = _Lines(write)
        while True:
            with self.sentences():
                asyncio.run(self._tail(submission_id, lines))
            job = self.get(submission_id)
            if job.ended:
                lines.rest(self.logs(submission_id))
                return job
            time.sleep(_POLL_SECONDS)

    async def _tail(self, submission_id: str, lines: "_Lines") -> None:
        lines.begin()
        async for text in self._client.tail_job_logs(submission_id):
            lines.add(text)

    @contextmanager
    def sentences(self) -> Iterator[None]:
        """Whatever Ray raises as an error of ours."""
        import aiohttp
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError:
            raise PreflightError(
                f"the cluster at {self.address} refuses the token, or wants one: set RAY_AUTH_MODE=token, and its "
                "token in RAY_AUTH_TOKEN or a file that RAY_AUTH_TOKEN_PATH names"
            ) from None
        except (ConnectionError, requests.exceptions.RequestException, aiohttp.ClientError) as error:
            raise _silent(self.address, error) from None
        except RuntimeError as error:
            text = str(error)
            if re.search(r"submission_id \S+ already exists", text):
                raise _Taken from None
            if "WebSocket" in text:
                raise _silent(self.address, error) from None
            reason = text.strip().splitlines()[0]
            raise PreflightError(f"the cluster at {self.address} refuses: {reason}") from error


class _Lines:
    """Whole lines, each handed on once, however often they are told from the beginning."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self._told, self._text = write, 0, ""

    def begin(self) -> None:
        self._text = ""

    def add(self, text: str) -> None:
        self._text += text
        self._tell(self._text.rfind("\n") + 1)

    def rest(self, whole: str) -> None:
        """What a follower has missed, as the job has ended."""
        self._text = whole
        self._tell(len(whole))

    def _tell(self, end: int) -> None:
        new = self._text[self._told : end]
        for line in new.splitlines():
            self._write(line)
        self._told = max(self._told, end)


def _job(details: Any) -> Job:
    return Job(
        id=details.submission_id,
        status=str(getattr(details.status, "value", details.status)),
        started=(details.start_time or 0) / 1000,
        message=details.message or "",
        exit_code=details.driver_exit_code,
        metadata=dict(details.metadata or {}),
    )


def _reach(url: str) -> None:
    """The client itself would wait for minutes where packets are lost."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        socket.create_connection((str(parts.hostname), port), timeout=_REACH_SECONDS).close()
    except OSError as error:
        raise _silent(url, error) from None


def _silent(url: str, error: Exception) -> _Silent:
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
    return _Silent(
        f"no Ray dashboard answers at {url} ({reason}); start the cluster's head, or correct --address; what a run "
        "came to is in its folder: electra events OUT"
    )


def told_ending(lines: Sequence[str]) -> dict[str, Any] | None:
    """The JSON line that a verb ends with, which stands for what Ray does not keep of a stopped job; None where its
    lines hold none."""
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get("exit_code"), int):
            return found
    return None
