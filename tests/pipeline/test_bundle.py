"""What a report of a defect holds, and that no secret is in it."""

import json
import tarfile
from pathlib import Path

import pytest
import yaml

from data_prep.errors import PreflightError
from pipeline import bundle
from pipeline.config import load
from pipeline.doctor_finding import error
from pipeline.experiment import Experiment
from tests.pipeline.test_cli import QUICKSTART, refused

# Real-looking, made up here, by where they are put.
SECRETS = {
    "event": "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0xYz",
    "log": "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "config": "hunter2hunter2",
    "finding": "AKIA" + "IOSFODNN7EXAMPLE",
    "variable": "6f1d0c8b9a7e4f53b2d1c0a99e8f7d6c",
    "not allowed": "a value that is nobody's business",
}


def unpacked(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        members = tar.getmembers()
        assert all(member.isfile() and member.name.startswith("electra-report/") for member in members)
        texts = {member.name.removeprefix("electra-report/"): tar.extractfile(member) for member in members}
        return {name: text.read().decode() for name, text in texts.items() if text is not None}


@pytest.fixture
def marked(out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished experiment with a secret wherever one may get to."""
    run = next((out / "runs").iterdir())
    with open(run / "events.jsonl", "a") as events:
        events.write(json.dumps({"time": 0, "event": "failed", "reason": f"GET said 401 to {SECRETS['event']}"}) + "\n")
    (out / "job.log").write_text(f"fetch https://me:{SECRETS['log']}@git/x\nAuthorization: Bearer {SECRETS['log']}\n")
    (out / "config.yaml").write_text((out / "config.yaml").read_text() + f"\npassword: {SECRETS['config']}\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRETS["variable"])
    monkeypatch.setenv("EDITOR_OF_MINE", SECRETS["not allowed"])
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://me:{SECRETS['config']}@mlflow")
    return out


def test_a_report_and_no_secret_in_it(marked: Path, tmp_path: Path) -> None:
    findings = [error("ray", f"key {SECRETS['finding']}, token {SECRETS['variable']}", "x")]
    record = {"exit_code": 3, "findings": [{"check": one.check, "said": one.said} for one in findings]}
    names = bundle.write(tmp_path / "report.tar.gz", record, marked, None)
    found = unpacked(tmp_path / "report.tar.gz")
    assert list(found) == names
    run = next((marked / "runs").iterdir()).name
    assert {
        *("doctor.json", "machine.json", "packages.txt", "config.yaml", "job.log"),
        *(f"runs/{run}/{name}" for name in ("run.json", "done.json", "events.jsonl")),
    } <= set(names)
    assert any(name.startswith(f"runs/{run}/metrics/") for name in names)
    whole = "\n".join(found.values())
    for place, secret in SECRETS.items():
        assert secret not in whole, place
    # and the rest is there
    assert json.loads(found["doctor.json"])["findings"][0]["said"] == "key [redacted], token [redacted]"
    machine = json.loads(found["machine.json"])
    assert machine["environment"]["NCCL_DEBUG"] == "INFO"
    assert machine["environment"]["MLFLOW_TRACKING_URI"] == "https://[redacted]@mlflow"
    assert set(machine["environment"]) <= set(bundle.VARIABLES) and "RAY_AUTH_TOKEN" in machine["set"]
    assert "GET said 401 to [redacted]" in found[f"runs/{run}/events.jsonl"]
    assert "\nnumpy==" in found["packages.txt"]


def test_the_same_twice_is_the_same_file(out: Path, tmp_path: Path) -> None:
    for name in ("a.tar.gz", "b.tar.gz"):
        bundle.write(tmp_path / name, {}, out, None)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_long_files_lose_their_beginning_at_the_end_of_a_line(tmp_path: Path) -> None:
    """What is cut away may be what tells that the rest is a secret."""
    token = "x" * 1000
    (tmp_path / "a.log").write_text(f"MY_TOKEN={token}\n" + "last line\n" * 20_000)
    bundle.write(tmp_path / "r.tgz", {}, tmp_path, None)
    text = unpacked(tmp_path / "r.tgz")["a.log"]
    assert len(text) <= 200_000 and set(text.splitlines()) == {"last line"}


def test_a_name_that_is_no_archives_is_refused() -> None:
    """Before anything is looked at."""
    assert refused(2, "doctor", "--bundle", "report.zip") == "--bundle report.zip: an archive's name ends with .tar.gz"
    said = refused(2, "doctor", "--bundle", "not-there/r.tgz")
    assert said == "--bundle not-there/r.tgz: not-there is no folder; make it, or name another"


def test_a_place_that_takes_no_archive_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"^--bundle /proc/r\.tgz: cannot be written \(.+\); name another place$"):
        bundle.write(Path("/proc/r.tgz"), {}, tmp_path, None)


def test_the_configuration_of_what_has_not_begun(tmp_path: Path) -> None:
    """What `electra doctor CONFIG --bundle FILE` was asked about, with overrides; that of a folder is the folder's."""
    experiment = load(QUICKSTART, ["seed=4711"], Experiment)
    bundle.write(tmp_path / "a.tgz", {}, tmp_path, None, experiment)
    assert yaml.safe_load(unpacked(tmp_path / "a.tgz")["config.yaml"])["seed"] == 4711
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    bundle.write(tmp_path / "b.tgz", {}, tmp_path, None, experiment)
    assert unpacked(tmp_path / "b.tgz")["config.yaml"] == "seed: 1\n"
