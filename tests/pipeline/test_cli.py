"""The command line: help, exit codes, one sentence for a mistake, and what goes to which stream."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from pipeline import cli, stages

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
VERBS = ["quickstart", "prepare", "train", "evaluate", "report", "export", "config"]


def electra(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def refused(code: int, *arguments: str | Path) -> str:
    """The one sentence on stderr of a command that must end with `code`, with nothing on stdout."""
    done = electra(*arguments)
    assert done.exit_code == code, done.output
    assert done.stderr.startswith("electra: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.output
    return done.stderr.removeprefix("electra: ").rstrip("\n")


# --- help ---


def test_help_answers_in_under_a_second() -> None:
    """Processor time of the whole process, the best of three: a busy machine must not fail it."""

    def seconds() -> float:
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "quickstart" in done.stdout
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    assert min(seconds() for _ in range(3)) < 1.0


def test_help_lists_every_verb() -> None:
    listed = electra("--help").stdout
    assert all(verb in listed for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help_with_an_example(verb: str) -> None:
    done = electra(verb, "-h")
    assert done.exit_code == 0
    assert f"Example: electra {verb} " in done.stdout


def test_a_wrong_verb_names_the_nearest() -> None:
    done = electra("trian", "x.yaml")
    assert done.exit_code == 2
    assert "Did you mean 'train'?" in done.stderr


# --- config ---


def test_config_prints_what_it_would_run_and_reads_it_back(tmp_path: Path) -> None:
    done = electra("config", QUICKSTART, "training.global_batch=48")
    assert done.exit_code == 0
    again = tmp_path / "again.yaml"
    again.write_text(done.stdout, encoding="utf-8")
    assert electra("config", again).stdout == done.stdout
    assert yaml.safe_load(done.stdout)["training"]["global_batch"] == 48


def test_config_as_json_is_the_same_tree() -> None:
    assert json.loads(electra("config", QUICKSTART, "--json").stdout) == yaml.safe_load(
        electra("config", QUICKSTART).stdout
    )


# --- mistakes ---


def test_a_wrong_key_is_exit_2_with_file_line_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(QUICKSTART.read_text().replace("micro_batch:", "mirco_batch:"), encoding="utf-8")
    line = next(n for n, text in enumerate(path.read_text().splitlines(), start=1) if "mirco" in text)
    for verb in ("prepare", "train", "evaluate", "report", "export", "config"):
        sentence = refused(2, verb, path)
        assert sentence.startswith(f"{path}:{line}: training.mirco_batch: unknown key; did you mean 'micro_batch'?")


def test_a_missing_configuration_is_exit_2(tmp_path: Path) -> None:
    assert refused(2, "train", tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such configuration file"
    assert "is a directory" in refused(2, "train", tmp_path)
    assert refused(2, "quickstart", "--config", tmp_path / "none.yaml").startswith(f"{tmp_path}/none.yaml: ")


def test_an_unwritable_folder_is_exit_3_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for verb in ("prepare", "train", "evaluate", "report", "export"):
        assert f"{tmp_path}/file/out" in refused(3, verb, QUICKSTART, "--out", tmp_path / "file" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_corpus_is_exit_4(tmp_path: Path) -> None:
    source = f"corpus.sources=[{{kind: jsonl, path: {tmp_path}/none.jsonl}}]"
    done = electra("prepare", QUICKSTART, source, "--out", tmp_path / "out")
    assert (done.exit_code, f"{tmp_path}/none.jsonl" in done.stderr) == (4, True)
    assert "Traceback" not in done.stderr


@pytest.mark.multi
def test_an_empty_corpus_is_exit_4(tmp_path: Path, ray_session: None) -> None:
    for content in ("", "\n\n"):
        (tmp_path / "empty.jsonl").write_text(content)
        source = f"corpus.sources=[{{kind: jsonl, path: {tmp_path}/empty.jsonl}}]"
        done = electra("prepare", QUICKSTART, source, "--out", tmp_path / f"out{len(content)}")
        assert (done.exit_code, "corpus is empty" in done.stderr) == (4, True), done.output


def test_verbs_before_their_time_say_what_comes_first(tmp_path: Path) -> None:
    for verb, code, first in (
        ("train", 4, "electra prepare"),
        ("evaluate", 5, "electra train"),
        ("report", 4, "electra"),
        ("export", 4, "electra train"),
    ):
        sentence = electra(verb, QUICKSTART, "--out", tmp_path / verb)
        assert (sentence.exit_code, first in sentence.stderr) == (code, True), sentence.output


def test_a_missing_glue_folder_is_exit_4(tmp_path: Path) -> None:
    assert refused(4, "evaluate", QUICKSTART, "--glue-dir", tmp_path / "none").startswith(f"{tmp_path}/none: ")


def test_glue_dir_selects_the_suite_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a: 'b' #c"
    folder.mkdir()
    experiment = stages.read_experiment(QUICKSTART, stages.glue_overrides(folder))
    assert (experiment.evaluation.suite, experiment.evaluation.glue_dir) == ("glue", folder)


def test_an_experiment_folder_stands_for_its_configuration_and_place(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(QUICKSTART.read_text())
    experiment = stages.read_experiment(tmp_path, [])
    assert experiment == stages.read_experiment(QUICKSTART, [])
    assert stages.default_folder(tmp_path, experiment) == tmp_path
    assert stages.default_folder(QUICKSTART, experiment) == Path("runs/quickstart")


# --- what is nobody's mistake ---


def test_an_internal_error_is_exit_1_and_says_how_to_see_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr(stages, "read_experiment", broken)
    assert refused(1, "config", "x") == (
        "internal error, ZeroDivisionError: first line (run again with --debug for the traceback)"
    )
    assert "Traceback (most recent call last)" in electra("config", "x", "--debug").stderr


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "no space", "f"), 3)])
def test_interruption_and_a_full_disk(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr(stages, "read_experiment", stop)
    refused(code, "config", "x")


def test_json_errors_are_one_object_on_stdout_and_the_sentence_on_stderr() -> None:
    done = electra("train", QUICKSTART, "seeds=0", "--json")
    record = json.loads(done.stdout)
    assert record["exit_code"] == done.exit_code == 2
    assert done.stderr == f"electra: {record['error']}\n"
    assert "seeds" in record["error"]


def test_runs_as_a_module_from_anywhere_and_finds_the_shipped_configuration(tmp_path: Path) -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "quickstart", "seed=-1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, time.monotonic() - started
    assert done.stderr == "electra: argument 'seed=-1': seed: input should be greater than or equal to 0, not -1\n"
    assert list(tmp_path.iterdir()) == []
