"""`electra plan`: the paper's FLOPs; hours, cost and links by hand; what it refuses; that it needs no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.errors import ConfigError, PreflightError
from pipeline import plan
from pipeline.config import load
from pipeline.devices import DEVICES, GIB, stated
from pipeline.experiment import Experiment
from pipeline.plan_size import Size
from pipeline.plan_traffic import checkpoint_bytes, traffic
from tests.pipeline import fake_experiment

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NOWHERE = Path("no-such-folder")


def experiment(name: str, *overrides: str) -> Experiment:
    return load(CONFIGS / name, overrides, Experiment)


def test_electra_large_is_the_papers() -> None:
    found = plan.make(experiment("electra-large.yaml"), NOWHERE, stated("h100", 64), corpus_tokens=33e9)
    (arm,), (run,) = found.arms, found.runs
    assert arm.parameters == 354_655_291
    assert run.paper_flops == pytest.approx(7.117606040895488e20, rel=1e-12)  # flops_computation.py, ELECTRA-400K
    assert (run.steps, run.tokens) == (400_000, 400_000 * 2048 * 512)
    assert run.epochs == pytest.approx(400_000 * 2048 * 512 / 33e9)
    assert run.seconds == pytest.approx(run.model_flops / (64 * 989e12 * 0.4))
    assert run.cost == pytest.approx(run.model_flops / (989e12 * 0.4) / 3600 * DEVICES["h100"].price)
    assert arm.checkpoint == 12 * 354_655_291
    assert found.assumed


def test_flops_of_a_token_by_part() -> None:
    found = plan.make(experiment("electra-large.yaml"), NOWHERE, stated("h100", 64))
    parts = {part.network: part for part in found.arms[0].parts}
    # 24 layers of 4·1024² + 2·1024·4096 weights, two FLOPs each, three passes; attention 4·D·L; Dense D→D and D→1
    disc, gen = parts["discriminator"], parts["generator"]
    assert disc.layers == 3 * 24 * 2 * (4 * 1024**2 + 2 * 1024 * 4096)
    assert disc.attention == 3 * 24 * 4 * 1024 * 512
    assert disc.outside == 3 * 2 * 1024 * (1024 + 1)
    slots, project = round(0.25 * 512) / 512, 2 * 1024 * 256
    assert gen.outside == pytest.approx(3 * (project + slots * 2 * 1024 * (256 + 30522)))
    run = found.runs[0]
    assert sum(part.total for part in parts.values()) * run.tokens == pytest.approx(run.model_flops)


def test_a_prepared_corpus_gives_exact_epochs(tmp_path: Path) -> None:
    manifest = fake_experiment.write_corpus(tmp_path)
    found = plan.make(experiment("quickstart.yaml"), tmp_path, stated("a100", 2))
    assert not found.assumed
    for run in found.runs:
        assert run.tokens == run.steps * 16 * 120  # every row of the corpus has 120 tokens
        assert run.epochs == pytest.approx(run.tokens / manifest.train.tokens)
        assert run.model_flops == pytest.approx(run.budget, rel=0.01)
    assert [(run.arm, run.budget) for run in found.runs] == [
        (arm, budget) for budget in (8e11, 2.4e12) for arm in ("electra", "bert", "roberta")
    ]


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    large = experiment("electra-large.yaml", "training.micro_batch=64")
    with pytest.raises(PreflightError, match=r"electra needs about .* GiB of a GPU, and RTX|GeForce") as refused:
        plan.make(large, NOWHERE, stated("rtx4090", 32))
    sentence = str(refused.value)
    assert "training.micro_batch=16" in sentence, sentence
    plan.make(experiment("electra-large.yaml", "training.micro_batch=16"), NOWHERE, stated("rtx4090", 32))


def test_alternatives_go_from_cheap_to_dear_and_keep_the_result() -> None:
    found = plan.make(experiment("electra-large.yaml", "training.micro_batch=8"), NOWHERE, stated("h100", 64))
    said = [change for _, change in plan.alternatives(found.setting)]
    again = "training.compute.activation_checkpointing=true"
    assert said == [
        "training.micro_batch=4",
        "training.micro_batch=2",
        "training.micro_batch=1",
        f"training.micro_batch=8 {again}",
        f"training.micro_batch=1 {again}",
        f"training.engine=deepspeed training.zero_stage=2 training.micro_batch=1 {again}",
        f"training.engine=deepspeed training.zero_stage=3 training.micro_batch=1 {again}",
    ]


def test_more_gpus_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="2049 GPUs share 2048 rows a step"):
        plan.make(experiment("electra-large.yaml"), NOWHERE, stated("h100", 2049))


def test_what_crosses_links() -> None:
    one = [Size(total=1_000, linear=800), Size(total=100, linear=90, frozen=True)]
    gradients, parameters = 2 * 800 + 4 * 200, 4 * 1_000
    device = DEVICES["a100"]

    def sent(stage: int, gpus: int = 4, accumulation: int = 3) -> float:
        return traffic(one, device, stage=stage, gpus=gpus, accumulation=accumulation, bf16=True).sent

    assert sent(0) == pytest.approx(0.75 * 2 * parameters)
    assert sent(1) == pytest.approx(0.75 * (gradients + parameters))
    assert sent(2) == pytest.approx(0.75 * (3 * gradients + parameters))
    assert sent(3) == pytest.approx(0.75 * 3 * (gradients + 2 * 4 * 1_100))
    assert sent(1, gpus=1) == 0
    inside, between = (traffic(one, device, stage=1, gpus=n, accumulation=1, bf16=True) for n in (8, 16))
    assert inside.seconds == pytest.approx(inside.sent / 300e9) and between.seconds == pytest.approx(
        between.sent / 25e9
    )
    assert checkpoint_bytes(one) == 12 * 1_000 + 4 * 100


def test_a_device_is_known_or_refused() -> None:
    with pytest.raises(ConfigError, match="no device is called 'h1000'; there are h100, h200, a100, a100-40"):
        stated("h1000", 8)
    with pytest.raises(ConfigError, match=r"--mfu: 1\.2"):
        stated("h100", 8, mfu=1.2)
    assert stated("h100", 8).device.memory == 80 * GIB
    assert stated("v100", 8, price=0).cost(3600) == 0
    assert stated("cpu", 8).seconds(1e15) is None


def test_the_verb_prints_json_without_torch_and_exits_as_documented(tmp_path: Path) -> None:
    program = (
        "import sys; from pipeline.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    )

    def run(*args: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", program, "plan", str(CONFIGS / "electra-large.yaml"), *args]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    done = run("--gpus", "64", "--device", "h100", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["arms"][0]["parameters"] == 354_655_291
    assert len(found["memory"]["electra"]) == 4 * 2 * 3
    assert "Memory of a GPU, GiB of 80: electra" in done.stderr
    refused = run("--gpus", "1", "--device", "rtx4090", "training.micro_batch=512")
    assert refused.returncode == 3 and "would do with training.micro_batch=" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
