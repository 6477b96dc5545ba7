"""Real-looking secrets, made up here, in every output of the command line: none comes out, and none may go in where it
would be stored or sent."""

import io
import json
import logging
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.errors import ConfigError
from data_prep.redact import MASK, redact_logs
from pipeline import bundle
from pipeline.config import load
from pipeline.console import Console
from pipeline.experiment import Experiment
from pipeline.mlflow_store import DataSet, Store, flatten
from tests.pipeline.test_cli import QUICKSTART, electra
from training.run_folder import Journal, append_events, events

# By what they are: a text as it is met, and the part of it that must not come out.
SECRETS = {
    "hugging face": ("hf_aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0xYz", "aB3dE6gH9jK2"),
    "bearer": ("Authorization: Bearer 9f8e7d6c5b4a39281706", "9f8e7d6c"),
    "aws": ("AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    "aws name": ("key AKIAIOSFODNN7EXAMPLE is not known", "IOSFODNN7"),
    "aws key": ("aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    "address": ("https://somebody:hunter2hunter2@host:5000/path", "hunter2"),
    "github": ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "16C7e42F"),
    "ray": ("6f1d0c8b9a7e4f53b2d1c0a99e8f7d6c", "6f1d0c8b"),  # of no known shape: by the variable below
    "mlflow": ("MLFLOW_TRACKING_PASSWORD=correct-horse,battery", "horse"),
}
VARIABLES = {"RAY_AUTH_TOKEN": SECRETS["ray"][0], "MLFLOW_TRACKING_PASSWORD": "correct-horse,battery"}
secrets = pytest.mark.parametrize(("text", "part"), SECRETS.values(), ids=SECRETS)


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a.yaml."""
    (tmp_path / "a.yaml").write_text(QUICKSTART.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- what may not go in -----------------------------------------------------------------------------------------------


@secrets
def test_a_configuration_with_a_secret_is_refused(text: str, part: str, project: Path) -> None:
    """With the line, the key and the way out, by every verb that reads one; what is stored, sent and rendered is made
    of it."""
    with open(project / "a.yaml", "a") as file:
        file.write(f"\nnotes:\n  - {json.dumps(text)}\n")
    line = (project / "a.yaml").read_text().splitlines().index("notes:") + 2
    for words in (["config", "show"], ["plan"], ["submit", "--dry-run"], ["doctor"], ["train", "--json"]):
        done = electra(*words, "a.yaml")
        assert (done.exit_code, part in done.output) == (2, False), (words, done.output)
        assert f"a.yaml:{line}: the value of notes.0 looks like a secret" in done.stderr
        assert "HF_TOKEN" in done.stderr and "cluster.submit.secrets" in done.stderr
    done = electra("config", "validate", "a.yaml")
    assert (done.exit_code, part in done.output) == (2, False)


@pytest.mark.parametrize("backend", ["ray", "kuberay", "slurm", "local"])
@secrets
def test_an_override_with_a_secret_is_refused(text: str, part: str, backend: str, project: Path) -> None:
    """It would stand in the entrypoint of a job, which Ray's dashboard shows to everybody."""
    for override in (f"corpus.sources.0.path={json.dumps(text)}", f"cluster.submit.slurm.setup=[{json.dumps(text)}]"):
        done = electra("submit", "a.yaml", override, "--backend", backend, "--dry-run", "--out", "/shared/x")
        assert (done.exit_code, part in done.output) == (2, False), done.output
        assert "argument '" in done.stderr and "looks like a secret" in done.stderr


def test_a_password_under_a_telling_key_is_refused(project: Path) -> None:
    done = electra("submit", "a.yaml", "corpus.password=tr0ub4dor", "--dry-run")
    assert (done.exit_code, "tr0ub4dor" in done.output) == (2, False)
    assert "the value of corpus.password looks like a secret" in done.stderr


def test_what_only_sounds_like_a_secret_is_none(project: Path) -> None:
    """Names of variables and of a Kubernetes Secret, an arm called after tokens with its rates, an address."""
    overrides = [
        "cluster.submit.secrets=[HF_TOKEN, RAY_AUTH_TOKEN]",
        "cluster.submit.secret_name=electra-tokens",
        "arms.0.name=tie_token",
        "corpus.sources.0={kind: text, path: 's3://bucket/tokens/a?region=eu-1'}",
    ]
    assert load(project / "a.yaml", overrides, Experiment).arms[0].label == "tie_token"


@pytest.mark.parametrize("backend", ["ray", "kuberay"])
def test_a_variable_handed_on_may_hold_no_secret(backend: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2hunter2@proxy:3128")
    words = ["submit", "a.yaml", "cluster.submit.env=[HTTPS_PROXY]", "--backend", backend, "--out", "/shared/x"]
    done = electra(*words, "--dry-run")
    assert (done.exit_code, "hunter2" in done.output) == (2, False)
    assert "cluster.submit.env: the value of HTTPS_PROXY holds a secret" in done.stderr
    assert "cluster.submit.secrets" in done.stderr


# --- what may not come out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["ray", "kuberay", "slurm", "local"])
def test_requests_and_manifests_name_secrets_and_hold_none(backend: str, project: Path) -> None:
    settings = [f"cluster.submit.secrets=[{', '.join(VARIABLES)}]", "cluster.submit.secret_name=tokens"]
    settings += ["cluster.submit.image=registry/electra:1", "cluster.submit.shared.claim=shared"]
    done = electra("submit", "a.yaml", *settings, "--backend", backend, "--dry-run", "--out", "/shared/x", "--json")
    assert done.exit_code == 0, done.output
    assert "RAY_AUTH_TOKEN" in done.stdout
    assert not any(value in done.output for value in VARIABLES.values())


@pytest.mark.parametrize("interactive", [False, True])
@secrets
def test_the_console(text: str, part: str, interactive: bool) -> None:
    stream = io.StringIO()
    console = Console(stream, interactive=interactive)
    console.say(f"said {text}")
    console.warn(f"warned {text}")
    console.table("table", ["a", "b"], [[text, 1]])
    said = stream.getvalue()
    assert part not in said
    assert said.count(MASK) >= 3 and "said" in said


@secrets
def test_an_error_and_its_traceback(text: str, part: str, project: Path) -> None:
    for words in (["plan", text], ["verify", text, "--json"], ["plan", "a.yaml", f"{text}=1", "--debug"]):
        done = electra(*words)
        assert done.exit_code in (2, 4)
        assert part not in done.output, words
        assert MASK in done.stderr or words[0] == "verify", words  # which leaves out what is before the host itself


@secrets
def test_events(text: str, part: str, tmp_path: Path) -> None:
    append_events(tmp_path, [{"event": "failed", "reason": f"it said: {text}", "ranks": [0]}])
    Journal(tmp_path).append({"event": "note", "detail": {"deep": [text]}})
    written = (tmp_path / "events.jsonl").read_text()
    assert part not in written
    first, second = events(tmp_path)
    assert first["reason"].startswith("it said: ") and first["ranks"] == [0] and MASK in json.dumps(second)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What a library's logger writes once a command or a worker has begun."""
    stream, factory = io.StringIO(), logging.getLogRecordFactory()
    handler, logger = logging.StreamHandler(stream), logging.getLogger("somebody.else")
    logger.addHandler(handler)
    redact_logs()
    yield stream
    logger.removeHandler(handler)
    logging.setLogRecordFactory(factory)


@secrets
def test_logs_of_libraries(text: str, part: str, logged: io.StringIO) -> None:
    logger = logging.getLogger("somebody.else")
    logger.error("refused: %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        logger.exception("it broke")
    assert part not in logged.getvalue()
    assert "refused: " in logged.getvalue() and "ValueError" in logged.getvalue()
    logger.error("nothing hidden: %d of %s", 3, "four")
    assert logged.getvalue().endswith("nothing hidden: 3 of four\n")


def test_mlflow(empty_store: Path, tmp_path: Path) -> None:
    """The file that MLflow keeps holds none of them, wherever it was told."""
    database = tmp_path / "mlflow.db"
    shutil.copy(empty_store, database)
    store = Store(f"sqlite:///{database}", "redaction", tmp_path / "files")
    told = {name: text for name, (text, _) in SECRETS.items()}
    store.open("key", name="run", start=0, tags={f"tag.{name}": text for name, text in told.items()})
    store.describe("key", flatten({"placement": told}))
    store.use("key", DataSet(name="data", digest="d", kind="local", source=json.dumps(told), profile="{}"))
    del store
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith("mlflow.db"))
    assert MASK.encode() in kept
    assert [name for name, (_, part) in SECRETS.items() if part.encode() in kept] == []


def test_the_report_of_a_defect(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("".join(f"{text}\n" for text, _ in SECRETS.values()))
    record = {"findings": [{"said": text} for text, _ in SECRETS.values()]}
    bundle.write(tmp_path / "report.tar.gz", record, tmp_path, None)
    with tarfile.open(tmp_path / "report.tar.gz") as tar:
        whole = "".join(file.read().decode() for member in tar if (file := tar.extractfile(member)) is not None)
    assert [name for name, (_, part) in SECRETS.items() if part in whole] == []
    assert whole.count(MASK) >= 2 * len(SECRETS)


def test_the_value_of_a_variable_goes_and_a_place_it_names_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable may lead to a file with a secret: paths below it are no secrets."""
    monkeypatch.setenv("SOME_CREDENTIAL_STORE", str(tmp_path))
    stream = io.StringIO()
    Console(stream).say(f"{tmp_path}/x and {VARIABLES['RAY_AUTH_TOKEN']}")
    assert stream.getvalue() == f"{tmp_path}/x and {MASK}\n"
    with pytest.raises(ConfigError, match="looks like a secret"):
        load(QUICKSTART, [f"corpus.location=/data/{VARIABLES['RAY_AUTH_TOKEN']}"], Experiment)
