"""A run that changes its world size and ZeRO stage at every restart sees, counts and learns what one process would."""

import json
import shutil
from pathlib import Path

import pytest

from tests.training.engine_ranks import run_group
from tests.training.runs import done
from tests.training.world_ranks import STEPS, planned, train_to, work
from training.metrics import read_metrics

pytestmark = [pytest.mark.usefixtures("process_group"), pytest.mark.multi, pytest.mark.slow]

STAGES = [(2, 1, 6), (1, 3, 13), (3, 0, 18), (2, 1, None)]  # ranks, ZeRO stage, the step that it is stopped at


def test_two_ranks_then_one_then_three_then_two(corpus: Path, tmp_path: Path) -> None:
    straight = tmp_path / "straight"
    wanted = train_to(planned(corpus, engine="ddp"), corpus, straight, None)

    changing = tmp_path / "changing"
    found: dict[str, dict[str, str]] = {}
    for number, (world, zero_stage, stop) in enumerate(STAGES):
        folder = tmp_path / f"stage{number}"
        folder.mkdir()
        stage = {"run_dir": str(changing), "zero_stage": zero_stage, "stop": stop}
        (folder / "stage.json").write_text(json.dumps(stage))
        run_group(world, corpus, folder, work)
        for rank in range(world):
            for position, rows in json.loads((folder / f"rows-{rank}.json").read_text()).items():
                found.setdefault(position, {}).update(rows)

    # rows, and all that is drawn for them: masks, replacements, sampling uniforms
    assert len(wanted) == STEPS and all(len(rows) == 12 for rows in wanted.values())
    assert found == wanted

    # ledgers, step by step
    lines, straight_lines = read_metrics(changing), read_metrics(straight)
    for name in ("flops", "flops_spent", "tokens"):
        assert [line["values"][name] for line in lines] == [line["values"][name] for line in straight_lines], name
    assert [line["attempt"] for line in lines] == [0] * 6 + [1] * 7 + [2] * 5 + [3] * 6

    # the first step after each restart, against a replay of the checkpoint in one process
    for _, _, stop in STAGES[:-1]:
        assert stop is not None
        replay = tmp_path / f"replay{stop}"
        (replay / "checkpoints").mkdir(parents=True)
        name = f"checkpoints/step-{stop:08d}"
        shutil.copytree(changing / name, replay / name)
        train_to(planned(corpus, engine="ddp"), corpus, replay, stop + 2)
        again = next(line["values"] for line in read_metrics(replay) if line["step"] == stop + 1)
        after = next(line["values"] for line in lines if line["step"] == stop + 1)
        for name in ("train/loss", "train/gradient_norm"):
            assert after[name] == pytest.approx(again[name], rel=1e-5), (stop, name)

    losses = [done(folder)["heldout"]["heldout/loss"] for folder in (changing, straight)]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    assert lines[-1]["values"]["train/loss"] == pytest.approx(straight_lines[-1]["values"]["train/loss"], rel=0.01)
