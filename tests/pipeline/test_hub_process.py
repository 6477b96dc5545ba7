"""`electra push` as a process of its own: killed in mid-upload, ended by what a hub says, and what it shows."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.storage import sha256_of
from tests.conftest import ROOT
from tests.pipeline.hub_exports import write_export, write_model
from tests.pipeline.hub_server import TOKEN, Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        hub.store.tokens[TOKEN] = ("me",)
        yield hub


def started(hub: Hub, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", "push", *map(str, arguments)],
        cwd=ROOT,
        env={
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pushed(hub: Hub, *arguments: str | Path) -> tuple[int, str, str]:
    process = started(hub, *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_killed_in_mid_upload_it_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    """Of two large files one has arrived and the other half; after SIGKILL the second alone is sent again."""
    folder = write_model(tmp_path / "model", shards=2, values=200_000)
    first, second = sorted(folder.glob("*.safetensors"))
    whole, half = sha256_of(first), sha256_of(second)
    hub.stall = (half, threading.Event())
    process = started(hub, folder, "me/small")
    try:
        deadline = time.monotonic() + 60
        while not (whole in hub.store.large and hub.uploading.get(half)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert 0 < hub.uploading[half] < second.stat().st_size
    hub.stall[1].set()
    hub.stall = None
    assert list(hub.store.repositories["me/small"].head("main").files) == [".gitattributes"]  # nothing half is there
    before = len(hub.sent("PUT"))
    code, out, _ = pushed(hub, folder, "me/small", "--json")
    assert code == 0
    again = [one for one in hub.sent("PUT")[before:] if one.status == 200]
    assert [(one.path, one.body) for one in again] == [(f"/large/{half}", second.stat().st_size)]
    for path in (first, second):
        assert hub.store.read("me/small", path.name) == path.read_bytes()
    (sent,) = json.loads(out)["sent"]
    assert sent["commit"] == hub.store.repositories["me/small"].branches["main"]
    assert sent["files"][first.name] == first.stat().st_size


def test_ends_as_the_hub_says_and_never_shows_the_token(hub: Hub, tmp_path: Path) -> None:
    """Even where the traceback is asked for, and the hub itself repeats the token."""
    export = write_export(tmp_path / "export")
    hub.fail("POST /api/models/me/small/commit", 403, f"no right, {TOKEN}")
    code, out, err = pushed(hub, export, "me/small", "--json", "--debug")
    said = json.loads(out)
    assert (code, said["exit_code"]) == (8, 8)
    assert said["error"] in err.replace("\n", " ")
    assert "gives this token no right to write to me/small (it says: no right, [redacted])" in said["error"]
    assert "Traceback" in err
    assert any(one.token == TOKEN for one in hub.asked)
    assert TOKEN not in out + err
