"""A server of this process that speaks as much of the Hub's API as pushing and pulling models takes.

Served: whoami, creating repositories and branches, checking a card, pre-upload, the LFS batch with single and
multi-part uploads and their verification, commits as NDJSON with the parent they follow, model info, paged trees, refs,
resolve with redirects to another host for large files, and ranges: see `hub_api`. `Hub.fail` scripts what goes wrong,
`stall` holds an upload up half way, and everything that came is in `asked`.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.pipeline.hub_api import Answer, Api, Read, token_of
from tests.pipeline.hub_store import Fault, Refused, Store

TOKEN = "hf_" + "a1B2" * 8


@dataclass(frozen=True)
class Asked:
    """One request; `body` is the number of bytes that came with it, `status` None where it was hung up on."""

    method: str
    path: str
    body: int
    status: int | None
    token: str | None


class Hub:
    """The server, from `with Hub() as hub` on; `part`: bytes above which large files go up in parts of that size."""

    def __init__(self, part: int = 2**30) -> None:
        self.asked: list[Asked] = []
        self.uploading: dict[str, int] = {}  # bytes that have come of a request, by the last part of its path
        self.stall: tuple[str, threading.Event] | None = None  # an upload that stops half way until it is let go on
        self._faults: list[Fault] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._api = Api(self.endpoint, f"http://localhost:{self._server.server_port}", part)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Hub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody answers any more."""
        if self.stall is not None:
            self.stall[1].set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def store(self) -> Store:
        """What it keeps."""
        return self._api.store

    def fail(self, words: str, status: int | None, message: str = "", **more: Any) -> Fault:
        """See `Fault`; the first that fits is met."""
        self._faults.append(Fault(words, status, message, **more))
        return self._faults[-1]

    def sent(self, words: str) -> list[Asked]:
        """Requests whose "METHOD /path" holds `words`."""
        return [one for one in self.asked if words in f"{one.method} {one.path}"]

    def answer(self, method: str, target: str, read: Read, headers: Any) -> Answer | None:
        """None: hang up. Refused for whatever is no success."""
        where = urlsplit(target)
        path = unquote(where.path)
        if (fault := self._met(f"{method} {path}")) is not None:
            if fault.before is not None:
                fault.before()
            if fault.raw is not None:
                return fault.status or 200, {"Content-Type": "text/html"}, fault.raw
            if fault.status:
                read()
                raise Refused(fault.status, fault.message, fault.code, fault.headers)
        query = {key: values[0] for key, values in parse_qs(where.query).items()}
        hang_up = fault is not None and fault.status is None
        if fault is None or fault.lost or not hang_up:
            answer = self._api.answer(method, path, query, read, headers)
        return None if hang_up else answer

    def _met(self, request: str) -> Fault | None:
        for fault in self._faults:
            if fault.words in request and fault.times > 0:
                if fault.skip > 0:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
        return None


@contextlib.contextmanager
def connected(monkeypatch: pytest.MonkeyPatch, part: int = 2**30) -> Iterator[Hub]:
    """A hub that this process's huggingface_hub talks to, with a token that may write under `me` and `lab`."""
    from huggingface_hub import close_session, constants

    with Hub(part) as hub:
        hub.store.tokens[TOKEN] = ("me", "lab")
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        close_session()
        yield hub
        close_session()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self._came = 0
        try:
            answer = self.hub.answer(self.command, self.path, self._read, self.headers)
        except Refused as refused:
            told = {"X-Error-Message": refused.message, "X-Error-Code": refused.code}
            headers = {key: value for key, value in told.items() if value} | refused.headers
            answer = refused.status, headers, json.dumps({"error": refused.message}).encode()
        except ConnectionError:
            answer = None
        status = None if answer is None else answer[0]
        asked = Asked(self.command, unquote(urlsplit(self.path).path), self._came, status, token_of(self.headers))
        self.hub.asked.append(asked)
        self.close_connection = True
        if answer is not None:
            with contextlib.suppress(ConnectionError):
                self._write(*answer)

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def _write(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body)), "Connection": "close"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _read(self) -> bytes:
        return b"".join(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        left = int(self.headers.get("Content-Length") or 0)
        oid = urlsplit(self.path).path.rsplit("/", 1)[-1]
        while left > 0:
            piece = self.rfile.read(min(left, 2**16))
            if not piece:
                raise ConnectionError("the client is gone")
            left -= len(piece)
            self._came += len(piece)
            self.hub.uploading[oid] = self._came
            if self.hub.stall is not None and self.hub.stall[0] == oid:
                self.hub.stall[1].wait()
            yield piece

    def log_message(self, *_: object) -> None:
        pass
