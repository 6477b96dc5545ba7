"""The whole road, for real and tiny: what it leaves and says, that it resumes, and that killing it harms nothing."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_prep import manifest as manifests
from pipeline import gather
from pipeline.export import export
from pipeline.export_sources import of_experiment
from pipeline.proof import proof_batch
from pipeline.quickstart import summary
from tests.conftest import ROOT, Road, lay_out

pytestmark = [pytest.mark.slow, pytest.mark.multi]

STAGES = ["prepare", "train", "evaluate", "report", "track", "export"]
RUNS = ["electra-3.00e+08-s0", "bert-3.00e+08-s0", "electra-9.00e+08-s0", "bert-9.00e+08-s0"]


def shard_hashes(out: Path) -> dict[str, str]:
    found = sorted((out / "corpus").glob("*/*.tar"))
    return {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def events(out: Path) -> list[tuple[str, str]]:
    lines = (out / "events.jsonl").read_text().splitlines()
    return [(line["stage"], line["event"]) for line in map(json.loads, lines)]


def test_leaves_what_it_promises(road: Road) -> None:
    assert [run.name for run in gather.read(road.out).finished] == sorted(RUNS, key=RUNS.index)
    assert len(shard_hashes(road.out)) >= 8  # nine units, most with a shard in both splits
    for name in ("config.yaml", "mlflow.db", "report/report.html", "report/report.json", "evaluation/results.jsonl"):
        assert (road.out / name).stat().st_size > 0
    for kind in ("discriminator", "generator"):
        assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {
            path.name for path in (road.out / "export" / kind).iterdir()
        }
    told = events(road.out)
    framed = [(stage, word) for stage, word in told if word in ("started", "done")]
    assert framed[: 2 * len(STAGES)] == [(stage, word) for stage in STAGES for word in ("started", "done")]
    within = told[1 : told.index(("prepare", "done"))]
    assert within == [("prepare", word) for word in ("documents", "tokenizer", "engine", "rows", "stats")]


def test_counted_flops_match_the_budget_and_the_other_arm(road: Road) -> None:
    """Within max(1 %, half a step of rounding and the difference of a run's rows from the corpus's mean)."""
    runs = gather.read(road.out).finished
    for run in runs:
        assert run.done is not None
        planned = run.steps * run.flops_per_step
        assert abs(planned - run.budget) <= run.flops_per_step / 2
        assert abs(run.done["flops_counted"] - run.budget) <= max(0.01 * run.budget, run.flops_per_step)


def test_the_summary_is_the_mean_of_the_tasks_means(road: Road) -> None:
    results = [json.loads(line) for line in (road.out / "evaluation" / "results.jsonl").read_text().splitlines()]
    rows = summary(road.out, "probes")
    assert [row["run"] for row in rows] == RUNS
    for row in rows:
        own = {result["task"]: result["score"] for result in results if result["run"] == row["run"]}
        assert set(own) == {"sentence_order", "source_topic"}
        assert row["mean"] == pytest.approx(sum(own.values()) / 2)
    assert all(row["mean"] is None for row in summary(road.out, "glue"))


def test_says_times_results_and_where_to_look(road: Road) -> None:
    text = (road.folder / "quickstart.txt").read_text()
    for words in (
        "runs/quickstart/report/report.html",
        f"ui --backend-store-uri sqlite:///{road.out}/mlflow.db",
        'AutoModelForPreTraining.from_pretrained("runs/quickstart/export/discriminator")',
        "largest logit difference from the training model",
        *STAGES,
    ):
        assert words in text
    assert "\x1b" not in text  # plain lines in a pipe


def test_again_finds_everything_done_and_starts_no_ray(road: Road) -> None:
    before = {path: path.stat().st_mtime_ns for path in (road.out / "runs").rglob("*.safetensors")}
    shards, report = shard_hashes(road.out), (road.out / "report" / "report.json").read_bytes()
    done = road.electra("quickstart", "--config", road.config, "--json")
    assert json.loads(done.stdout)["stages"]["train"]["trained"] == 0
    assert "Everything was done already" in done.stderr
    assert "ray: ready" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert shard_hashes(road.out) == shards
    assert (road.out / "report" / "report.json").read_bytes() == report


@pytest.fixture
def copy(road: Road, tmp_path: Path) -> Path:
    """The finished experiment, to spoil."""
    subprocess.run(["cp", "-r", road.out, tmp_path / "copy"], check=True)
    return tmp_path / "copy"


def made_again(out: Path) -> list[bool]:
    """Export; whether the discriminator and the generator were written anew."""
    return [one.new for one in export(of_experiment(out), out / "export")]


def test_an_exported_folder_is_kept_only_if_every_file_is_what_was_proved(copy: Path) -> None:
    marker = copy / "export" / "export.json"
    assert made_again(copy) == [False, False]
    weights = copy / "export" / "discriminator" / "model.safetensors"
    proved = weights.read_bytes()
    weights.write_bytes(proved[:-1] + bytes([proved[-1] ^ 1]))
    assert made_again(copy) == [True, False]
    assert weights.read_bytes() == proved
    (copy / "export" / "generator" / "config.json").unlink()
    assert made_again(copy) == [False, True]
    written = json.loads(marker.read_text())
    assert written["files"]["discriminator"]["model.safetensors"] == {
        "bytes": len(proved),
        "sha256": hashlib.sha256(proved).hexdigest(),
    }
    marker.write_text(marker.read_text()[:40])  # torn
    assert made_again(copy) == [True, True]
    assert json.loads(marker.read_text()).keys() == written.keys()


def test_a_card_follows_the_scores_it_shows(copy: Path) -> None:
    made_again(copy)  # the card names the folder the experiment lies in, which is another here
    results = copy / "evaluation" / "results.jsonl"
    weights = copy / "export" / "discriminator" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    results.write_text("".join(json.dumps({**line, "score": 0.123}) + "\n" for line in lines))
    assert made_again(copy) == [False, False]
    card = (copy / "export" / "discriminator" / "README.md").read_text()
    assert "| probes | sentence_order (subset) | accuracy | 0.123 |" in card
    assert weights.stat().st_mtime_ns == before
    card_before = (copy / "export" / "discriminator" / "README.md").stat().st_mtime_ns
    assert made_again(copy) == [False, False]
    assert (copy / "export" / "discriminator" / "README.md").stat().st_mtime_ns == card_before


def test_a_checkpoint_of_a_run_goes_where_it_is_told(road: Road, tmp_path: Path) -> None:
    run = road.out / "runs" / "electra-3.00e+08-s0"
    done = road.electra("export", run, "--step", "5", "--dtype", "bf16", "--out", tmp_path / "to")
    assert f"{tmp_path}/to/discriminator: ElectraForPreTraining in bf16, largest logit difference" in done.stdout
    marker = json.loads((tmp_path / "to" / "export.json").read_text())
    assert (marker["run"], marker["step"], marker["dtype"]) == (run.name, 5, "bf16")
    card = (tmp_path / "to" / "discriminator" / "README.md").read_text()
    assert "| steps × global batch × row length | 5 × 16 × 32 |" in card
    assert "## Evaluation" not in card  # its run was evaluated at another step


def test_an_arm_without_a_discriminator_is_exported_as_its_encoder(road: Road, tmp_path: Path) -> None:
    """Its embeddings are narrower than its body, for which only ELECTRA's classes have room: not for the pair head."""
    done = road.electra("export", road.out / "runs" / "bert-3.00e+08-s0", "--out", tmp_path / "to")
    assert f"{tmp_path}/to/encoder: ElectraForMaskedLM without the head nsp, largest logit difference" in done.stdout
    assert [path.name for path in (tmp_path / "to").iterdir() if path.is_dir()] == ["encoder"]
    card = (tmp_path / "to" / "encoder" / "README.md").read_text()
    assert "Pre-trained with BERT (Devlin et al. 2019) by the run `bert-3.00e+08-s0`" in card
    assert "AutoModelForMaskedLM.from_pretrained" in card


def test_token_types_a_model_does_not_know_are_its_last(road: Road) -> None:
    manifest = manifests.load(road.out / "corpus")
    two, one = (proof_batch(road.out / "corpus", manifest, n)["types"] for n in (2, 1))
    assert two.max() == 1  # segments: pairs have two
    assert one.max() == 0


def test_an_export_that_was_removed_is_made_again_and_not_called_done(road: Road) -> None:
    shutil.rmtree(road.out / "export" / "generator")
    done = road.electra("quickstart", "--config", road.config)
    assert (road.out / "export" / "generator" / "model.safetensors").exists()
    assert "Everything was done already" not in done.stdout


def test_another_experiment_in_the_same_folder_is_refused(road: Road) -> None:
    done = road.electra("train", road.config, "training.global_batch=8", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "other values of training.global_batch;" in done.stderr


def test_an_altered_corpus_under_finished_runs_is_refused(road: Road, tmp_path: Path) -> None:
    """Same configuration, other documents: the runs' own record of the corpus gives it away."""
    copy = lay_out(tmp_path / "copy")
    copy.out.parent.mkdir()
    subprocess.run(["cp", "-r", road.out, copy.out], check=True)
    manifest = manifests.load(copy.out / "corpus")
    manifests.save(manifest.model_copy(update={"inputs_sha256": "other"}), copy.out / "corpus")
    done = copy.electra("train", copy.out, check=False)
    assert done.returncode == 2
    assert "was trained with another manifest_sha256" in done.stderr


def kill_when(road: Road, stage: str, appears: str) -> None:
    """Start the road and kill its driver, with nothing but SIGKILL, once `stage` began and a file `appears`."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", "quickstart", "--config", str(road.config)],
        cwd=road.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 240
        while not ((stage, "started") in _events_so_far(road.out) and any(road.out.glob(appears))):
            assert driver.poll() is None, "the driver ended before it could be killed"
            assert time.monotonic() < deadline, f"{appears} never appeared"
            time.sleep(0.05)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert (stage, "done") not in _events_so_far(road.out)


def _events_so_far(out: Path) -> list[tuple[str, str]]:
    return events(out) if (out / "events.jsonl").exists() else []


def test_killed_in_prepare_train_and_evaluate_it_resumes_to_the_same_corpus(road: Road, tmp_path: Path) -> None:
    killed = lay_out(tmp_path / "killed")
    (killed.folder / "documents.jsonl").write_bytes((road.folder / "documents.jsonl").read_bytes())
    kill_when(killed, "prepare", "corpus/documents/0000*.json")
    kill_when(killed, "train", "runs/*/metrics/A-*.jsonl")
    kill_when(killed, "evaluate", "evaluation/units/*.json")
    done = killed.electra("quickstart", "--config", killed.config, "--json")
    assert shard_hashes(killed.out) == shard_hashes(road.out)
    assert manifests.load(killed.out / "corpus").sha256 == manifests.load(road.out / "corpus").sha256
    assert json.loads(done.stdout)["stages"]["evaluate"]["results"] == 8
    report = json.loads((killed.out / "report" / "report.json").read_text())
    assert [run["name"] for run in report["runs"] if run["done"]] == RUNS
    assert not report["missing"]
