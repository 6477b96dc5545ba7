"""`electra export`: what a path names, where the folders go, what is refused; and the process that proves them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner, Result

from data_prep.errors import DataError
from pipeline import cli, export, proof, proof_fresh
from pipeline.export_sources import at
from tests.pipeline import exported
from tests.pipeline.test_proof import (
    ELECTRA,
    examined_here,
    swap_queries_and_keys,
    swap_tokens,
    tokenizer,
    weights,
)
from tests.pipeline.test_proof_failed import spoiled
from training import run_folder
from training.rollback import Rollback

__all__ = ["spoiled"]
pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def made(process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with an interrupted run that has checkpoints of the steps 3, 6 and 9."""
    out = exported.experiment(tmp_path_factory.mktemp("made") / "out")
    exported.begun_run(out, ELECTRA, steps=(3, 6, 9))
    return out


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """That run, to spoil."""
    shutil.copytree(made, tmp_path / "out")
    return next((tmp_path / "out" / "runs").iterdir())


def electra(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def done(*arguments: str | Path | int) -> dict[str, Any]:
    found = electra("export", *arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)  # type: ignore[no-any-return]


def refused(code: int, *arguments: str | Path | int) -> str:
    found = electra("export", *arguments)
    assert found.exit_code == code, found.output
    assert found.stderr.startswith("electra: ") and "Traceback" not in found.output
    return found.stderr.removeprefix("electra: ").rstrip("\n")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of its own."""
    monkeypatch.setattr(proof, "_examined", examined_here)


@pytest.mark.slow
def test_a_fresh_process_proves_it_and_knows_nothing_of_ours(run: Path, tmp_path: Path) -> None:
    """Also where a module of ours is broken, and where the working directory would shadow Python's own."""
    result = done(run, "--out", tmp_path / "to")
    assert [one["architecture"] for one in result["exported"]] == ["ElectraForPreTraining", "ElectraForMaskedLM"]
    assert all(0 < one["largest_difference"] <= 1e-4 for one in result["exported"])
    assert all(0 < one["exact_difference"] <= 1e-9 for one in result["exported"])
    model, info = transformers.AutoModelForPreTraining.from_pretrained(
        tmp_path / "to" / "discriminator", output_loading_info=True
    )
    assert type(model).__name__ == "ElectraForPreTraining" and not any(info.values())
    source = Path(proof_fresh.__file__).read_text()
    assert not any(
        f"{word} {name}" in source for word in ("import", "from") for name in ("pipeline", "training", "data")
    )


@pytest.mark.slow
def test_a_failed_proof_is_exit_9_and_leaves_nothing(run: Path, spoiled: Any, tmp_path: Path) -> None:
    spoiled(tokenizer(swap_tokens))  # what only the fresh process finds
    sentence = refused(9, run, "--out", tmp_path / "to")
    assert sentence.startswith("discriminator, as exported: its tokenizer has another vocabulary")
    assert [path.name for path in (tmp_path / "to").iterdir()] == [".lock"]


def test_a_fault_in_the_weights_is_exit_9_too(run: Path, spoiled: Any, here: None, tmp_path: Path) -> None:
    spoiled(weights(swap_queries_and_keys))
    assert "qkv.weight does not come back" in refused(9, run, "--out", tmp_path / "to")


def test_a_process_that_dies_proves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(proof, "proof_fresh", type("Broken", (), {"__file__": str(tmp_path / "none.py")}))
    sentence = refused(9, run, "--out", tmp_path / "to")
    assert sentence.startswith("the process that proves exported folders ended with 2 (")
    assert [path.name for path in (tmp_path / "to").iterdir()] == [".lock"]


# --- which checkpoint, and where to -----------------------------------------------------------------------------------


def test_of_a_run_the_newest_whole_checkpoint(run: Path, here: None) -> None:
    """Altered in a way that its sizes do not show."""
    part = next((run / "checkpoints" / "step-00000009").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1] + bytes([part.read_bytes()[-1] ^ 1]))
    found = electra("export", run)
    assert found.exit_code == 0, found.output
    assert (
        "warning: " in found.stdout and "step-00000009" in found.stdout and "choose another checkpoint" in found.stdout
    )
    folder = run.parents[1] / "export" / run.name / "step-00000006"
    assert json.loads((folder / "export.json").read_text())["step"] == 6
    assert "| steps × global batch × row length | 6 × 4 × 32 |" in (folder / "discriminator" / "README.md").read_text()


def test_of_a_run_a_step(run: Path, here: None, tmp_path: Path) -> None:
    result = done(run, "--step", 3, "--dtype", "fp16", "--out", tmp_path / "to")
    assert (result["run"], result["step"], result["dtype"]) == (run.name, 3, "fp16")
    assert Path(result["out"]) == tmp_path / "to"


def test_a_checkpoint(run: Path, here: None, tmp_path: Path) -> None:
    assert done(run / "checkpoints" / "step-00000006", "--out", tmp_path / "to")["step"] == 6


def test_again_nothing_is_written(run: Path, here: None, tmp_path: Path) -> None:
    assert [one["new"] for one in done(run, "--out", tmp_path / "to")["exported"]] == [True, True]
    assert [one["new"] for one in done(run, "--out", tmp_path / "to")["exported"]] == [False, False]
    marker = (tmp_path / "to" / "export.json").read_bytes()
    shutil.rmtree(tmp_path / "to" / "generator")
    assert [one["new"] for one in done(run, "--out", tmp_path / "to")["exported"]] == [False, True]
    assert (tmp_path / "to" / "export.json").read_bytes() == marker
    assert [one["new"] for one in done(run, "--out", tmp_path / "to", "--step", 3)["exported"]] == [True, True]


def test_what_is_no_checkpoint_is_refused(
    run: Path, here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, checkpoint = run.parents[1], run / "checkpoints" / "step-00000003"
    assert refused(2, checkpoint, "--step", 3) == f"--step: {checkpoint} is one checkpoint; name its run, {run}"
    assert refused(5, run, "--step", 4).endswith("holds no checkpoint of step 4; choose one of 3, 6, 9")
    assert refused(4, out) == f"{out}/runs: no finished run; run `electra train` first"
    assert refused(2, out, "--step", 3).startswith("--step: an experiment has many runs; name one of them, in ")
    assert refused(2, run, "--out", out).startswith(f"--out: an experiment lies in {out}; say where the model folders")
    assert refused(2, out / "none") == f"{out}/none: no such configuration file"
    done(run, "--out", tmp_path / "to")
    sentence = refused(2, tmp_path / "to" / "generator")
    assert (
        sentence
        == f"{tmp_path}/to/generator: is a Hugging Face folder already; name a checkpoint, a run or an experiment"
    )
    monkeypatch.chdir(tmp_path)
    shutil.copy(out / "config.yaml", "other.yaml")
    assert refused(4, "other.yaml").startswith(f"{tmp_path}/runs/tiny does not exist; run `electra train` first")
    shutil.rmtree(run / "checkpoints")
    assert refused(5, run) == f"{run}: holds no whole checkpoint; run `electra train` again"


def test_other_peoples_files_are_not_replaced(run: Path, here: None, tmp_path: Path) -> None:
    (tmp_path / "to" / "discriminator").mkdir(parents=True)
    (tmp_path / "to" / "discriminator" / "thesis.tex").touch()
    assert refused(3, run, "--out", tmp_path / "to").startswith(
        f"{tmp_path}/to/discriminator: holds files that are no ex"
    )
    assert (tmp_path / "to" / "discriminator" / "thesis.tex").exists()
    (tmp_path / "to" / "discriminator" / "config.json").touch()  # somebody else's model
    assert "holds files that are no export" in refused(3, run, "--out", tmp_path / "to")
    (tmp_path / "to" / "discriminator" / "thesis.tex").rename(tmp_path / "thesis.tex")
    (tmp_path / "to" / "discriminator" / "config.json").unlink()
    done(run, "--out", tmp_path / "to")
    (tmp_path / "to" / "encoder").mkdir()
    (tmp_path / "thesis.tex").rename(tmp_path / "to" / "encoder" / "thesis.tex")
    assert "encoder: is no network of" in refused(3, run, "--out", tmp_path / "to", "--step", 3)
    assert (tmp_path / "to" / "encoder" / "thesis.tex").exists()
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refused(3, run, "--out", tmp_path / "file" / "to")


def test_an_export_that_was_killed_is_made_again(
    run: Path, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed between the first folder and the second: nothing says that it is whole, and nothing is in the way."""
    show = export._show

    def stop(temporary: Path, folder: Path) -> None:
        if folder.name == "generator":
            raise KeyboardInterrupt
        show(temporary, folder)

    with monkeypatch.context() as patch:
        patch.setattr(export, "_show", stop)
        assert electra("export", run, "--out", tmp_path / "to").exit_code == 130
    assert json.loads((tmp_path / "to" / export.MARKER).read_text()) == {}
    assert [one["new"] for one in done(run, "--out", tmp_path / "to")["exported"]] == [True, True]


def test_a_checkpoint_that_a_rollback_left_is_not_the_newest(run: Path) -> None:
    """Killed before its tidying: the checkpoints of steps 6 and 9 lie there still."""
    back = Rollback(
        step=10, to_step=3, from_position=0, to_position=40, reason="spike", flops=0.0, flops_spent=0.0, seconds=0.0
    )
    assert at(run).checkpoint.progress.step == 9
    back.record(run)
    source = at(run)
    assert (source.checkpoint.progress.step, source.passed_over) == (3, ())


def test_the_corpus_must_be_the_one_it_was_trained_on(run: Path) -> None:
    out = run.parents[1]
    words = out / "corpus" / "tokenizer" / "tokenizer.json"
    kept = words.read_text()
    words.write_text(kept.replace("##s", "##z"))
    with pytest.raises(DataError, match="run `electra prepare` again to restore it"):
        at(run).corpus()
    words.write_text(kept)
    exported.write_corpus(out / "corpus", "bpe")
    with pytest.raises(DataError, match=r"is not the corpus that .* was trained on"):
        at(run).corpus()


def test_what_is_on_record_of_a_run_that_goes_on(run: Path) -> None:
    journal = {"event": "started", "time": 1.0, "attempt": 0, "world_size": 1, "device": "H200"}
    (run / run_folder.EVENTS).write_text(json.dumps(journal) + "\n")
    source = at(run, 6)
    record = source.record()
    assert not source.is_last
    assert (record["step"], record["tokens"], record["hardware"]) == (6, 600, "1 × H200")
    assert record["tokens_per_second"] == 600 / record["seconds"]
    shapes = source.checkpoint.manifest["shapes"]
    assert "generator.embeddings.word.weight" not in shapes  # shared, and so counted once
    assert record["parameters"] == sum(parameter.numel() for parameter in _parameters(source.checkpoint))


def _parameters(checkpoint: Any) -> Any:
    from training.checkpoints import objective_of

    return objective_of(checkpoint).parameters()
