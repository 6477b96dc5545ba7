"""An experiment by steps, from its plan to what is reported of it: seeds are repetitions of one cell."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep import storage
from pipeline import analysis, gather
from pipeline.corpora import MAIN, prepared
from tests.pipeline import fake_experiment
from tests.pipeline.test_experiment import experiment
from tests.training.synthetic import write_corpus
from training.run_folder import write_run_record
from training.settings import RunSpec

STEPS = (
    "corpus.seq_len=32",
    "model={embedding_size: 8, hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, max_positions: 32}",
    "training.global_batch=4",
    "budgets=null",
    "steps=3",
    "seeds=2",
    "arms=[{objective: %s, learning_rate: 1}]",
)


def planned(out: Path, objective: str) -> list[RunSpec]:
    """The runs of an experiment whose corpus is at hand, so that each seed's rows cost something of their own."""
    write_corpus(out / "corpus", rows=60)
    config = experiment(*STEPS[:-1], STEPS[-1] % objective)
    (out / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return config.runs(prepared({MAIN: storage.folder(out / "corpus")}))


def write_run(out: Path, spec: RunSpec, **done: Any) -> None:
    run_dir = out / "runs" / spec.name
    run_dir.mkdir(parents=True)
    write_run_record(run_dir, spec)
    counted = spec.inherited + spec.steps * spec.flops_per_step
    record = {
        "step": spec.steps, "budget": spec.budget, "flops_counted": counted, "flops_spent": counted, "tokens": 9,
        "seconds": 1.0, "tokens_per_second": 9.0, "checkpoint": "x", "heldout": {}, "parameters": 1, "world_size": 1,
        "hardware": "",
    }  # fmt: skip
    (run_dir / "done.json").write_text(json.dumps(record | done))


def test_two_seeds_are_one_cell(tmp_path: Path) -> None:
    runs = planned(tmp_path, "bert")
    assert len({run.flops_per_step for run in runs}) == 2
    for run in runs:
        write_run(tmp_path, run)
    answers = fake_experiment.write_results(tmp_path, "bert", 0, "probes")
    facts = [{"run": run.name, "seed": run.identity.seed, "budget": run.budget} for run in runs]
    fake_experiment.write_results_file(tmp_path, [{**answer, **fact} for answer in answers for fact in facts])
    found = analysis.analyse(gather.read(tmp_path))
    ((cell,),) = (suite.cells for suite in found.suites)
    assert (cell.arm, cell.seeds, cell.budget) == ("bert", 2, runs[0].budget)
    assert cell.flops_counted == pytest.approx(1.5 * sum(run.flops_per_step for run in runs))
    assert found.missing == []


def test_counted_flops_are_held_to_what_the_rows_of_the_seed_cost(tmp_path: Path) -> None:
    """Not to the budget, which is what average rows would cost."""
    runs = planned(tmp_path, "bert")
    for run in runs:
        write_run(tmp_path, run)
    assert analysis.analyse(gather.read(tmp_path)).matching.worst_deviation == pytest.approx(0, abs=1e-12)
    half = runs[0].steps * runs[0].flops_per_step / 2
    fake_experiment.change(tmp_path / "runs" / runs[0].name / "done.json", flops_counted=half)
    assert analysis.analyse(gather.read(tmp_path)).matching.outside == {runs[0].name: pytest.approx(-0.5)}


def test_what_is_missing_is_called_by_its_name_and_its_first_stage(tmp_path: Path) -> None:
    first, second, *of_the_other_seed = planned(tmp_path, "electra_two_stage")
    assert (first.name, second.name) == ("electra_two_stage-first-3steps-s0", "electra_two_stage-3steps-s0")
    write_run(tmp_path, first)
    for run in of_the_other_seed:
        write_run(tmp_path, run)
    (sentence, _) = analysis.analyse(gather.read(tmp_path)).missing
    assert re.fullmatch(rf"Run {second.name} was not started \(its first stage is at step 0 of 1\)\.", sentence)
