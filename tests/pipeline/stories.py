"""Runs as the loop leaves them, event by event and line by line, for tests of what is told about them.

A step costs 10 FLOPs and 2 seconds, 1.5 of them useful; every fifth step has a line.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.pipeline.fake_experiment import MODEL
from training.run_folder import write_run_record
from training.settings import RunSpec

FLOPS, SECONDS, USEFUL, ROWS = 10.0, 2.0, 1.5, 8

Record = dict[str, Any]


@dataclass
class Told:
    """A run that is made up: its events and its lines, by a clock that only its methods move."""

    now: float = 1000.0
    events: list[Record] = field(default_factory=list)
    lines: list[Record] = field(default_factory=list)
    step: int = 0
    spent: float = 0.0
    attempt: int = -1
    resumed_at: int = 0
    figures: Record = field(default_factory=dict)  # in every line, beside the ledgers

    def event(self, name: str, **fields: Any) -> "Told":
        self.events.append({"time": self.now, "event": name, **fields})
        return self

    def wait(self, seconds: float) -> "Told":
        self.now += seconds
        return self

    def start(self, step: int = 0, *, passed_over: Sequence[str] = (), writes: bool = True) -> "Told":
        """The next attempt, from a step; one that leaves no line (not `writes`) leaves its number to the next."""
        found = {"from": f"step-{step:08d}" if step else None, "passed_over": [*passed_over]}
        device = {"world_size": 2, "device": "CPU (x86_64)", "peak_flops": None}
        self.event("started", attempt=self.attempt + 1, step=step, **found, **device)
        self._segment(step, writes=writes)
        return self

    def _segment(self, step: int, *, writes: bool = True) -> None:
        self.attempt += writes
        self.step = self.resumed_at = step

    def train(self, steps: int) -> "Told":
        """So many steps."""
        for _ in range(steps):
            self.step += 1
            self.spent += FLOPS
            self.wait(SECONDS)
            if self.step % 5 == 0:
                self.lines.append(self._line())
        return self

    def _line(self) -> Record:
        values = {"flops": FLOPS * self.step, "flops_spent": self.spent, "step_seconds": USEFUL * self.step}
        values |= self.figures
        return {
            "attempt": self.attempt, "resumed_at": self.resumed_at, "step": self.step, "time": self.now,
            "values": values,
        }  # fmt: skip

    def save(self, **fields: Any) -> "Told":
        return self.event(
            "saved", step=self.step, bytes=2_000_000, copy_seconds=0.1, write_seconds=1.0, **{"pruned": [], **fields}
        )

    def roll_back(self, to_step: int, reason: str = "the loss is not finite") -> "Told":
        self.event(
            "rollback", step=self.step, to_step=to_step, from_position=ROWS * to_step, to_position=ROWS * self.step,
            reason=reason, flops=FLOPS * (self.step - to_step), seconds=0.0,
        )  # fmt: skip
        self._segment(to_step)
        return self

    def write(self, run_dir: Path, steps: int | None = None) -> Path:
        """Into a run's folder, with what it was to do where that is said."""
        (run_dir / "metrics").mkdir(parents=True)
        (run_dir / "run.json").write_text("{}")
        if steps is not None:
            write_run_record(run_dir, specification(run_dir.name, steps))
        (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in self.events))
        for line in self.lines:
            with open(run_dir / "metrics" / f"A-{line['attempt']:05d}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return run_dir


def specification(name: str, steps: int) -> RunSpec:
    """Of a run of so many steps."""
    identity = {
        "arm": {"objective": "mlm", "learning_rate": 1e-3},
        "model": MODEL,
        "optimizer": {},
        "order": {},
        "global_batch": ROWS,
        "steps": steps,
        "schedule": {"kind": "linear", "warmup_steps": 1, "decay_steps": 0},
        "seq_len": 128,
        "seed": 0,
        "manifest_sha256": "0" * 64,
        "tokenizer_sha256": "0" * 64,
    }
    return RunSpec.model_validate(
        {
            "name": name,
            "budget": FLOPS * steps,
            "flops_per_step": FLOPS,
            "identity": identity,
            "placement": {"micro_batch": ROWS},
        }
    )
