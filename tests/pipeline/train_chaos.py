"""Kill a training run at random moments, again and again, and compare what it ends with to an undisturbed one.

By hand: `python -m tests.pipeline.train_chaos --kills 20 --seed 0`; `make test-long` does the same. Two ranks train 300
steps under an embedded Ray. Killed with SIGKILL are a rank, the driver, the raylet, a rank in the middle of writing its
part of a checkpoint, and a rank that has just restored one; after every death of the driver the same command is given
again. Parameters, optimizer state and the ledger of the last checkpoint must equal those of the undisturbed run bit for
bit. A run that finishes before all kills are done is compared and begun anew.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.pipeline.chaos import HANG_SECONDS, ROOT, work_folder
from tests.pipeline.chaos_sites import Embedded, kill_one
from tests.training.runs import weights
from tests.training.synthetic import write_corpus
from training.heartbeat import process_started, read_beats
from training.run_folder import events

STEPS, WORLD = 300, 2
RUN = f"electra-{STEPS}steps-s0"
LEDGER = ("step", "flops_counted", "flops_executed", "flops_paper", "tokens", "skipped_steps")
AT_RANDOM, IN_PLACE = ("rank", "driver", "raylet"), ("kill_in_save", "kill_in_resume")
_LATEST = {"kill_in_save": STEPS - 20, "kill_in_resume": 60}  # there must be a saving, or a resumption, after it
_SETTINGS = [
    "corpus.seq_len=32",
    "model={embedding_size: 16, hidden_size: 64, num_layers: 2, num_heads: 1, intermediate_size: 128,"
    " max_positions: 32}",
    "arms=[{objective: electra, learning_rate: 0.001}]",
    "budgets=null",
    f"steps={STEPS}",
    f"cluster={{num_workers: {WORLD}, max_failures: 100}}",
]
_TRAINING = {
    "global_batch": 16,
    "micro_batch": 4,
    "log_every": 5,
    "eval_rows": 16,
    "checkpoints": {"every": 10},
    "watchdog": {"step": 60.0, "heartbeat": 0.5},
}

Say = Callable[[str], None]


class TrainChaos:
    """A campaign in `work`."""

    def __init__(self, work: Path, rng: random.Random, say: Say = print) -> None:
        self.work, self.rng, self.say, self.site = work, rng, say, Embedded()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._started = 0
        write_corpus(work / "corpus", rows=2000)

    def undisturbed(self) -> Path:
        """Train without a kill; returns the run's folder."""
        began = time.monotonic()
        code = self._start("undisturbed", []).wait(timeout=900)
        if code != 0:
            raise RuntimeError(f"the undisturbed run ended with {code}; see the logs in {self.work}")
        self.say(f"undisturbed: {time.monotonic() - began:.0f} s")
        return self._run("undisturbed")

    def disturb(self, expected: Path, kinds: list[str], longest_pause: float) -> None:
        """One kill of each of `kinds`, and on until a run is finished."""
        at_random, in_place = ([kind for kind in kinds if kind in which] for which in (AT_RANDOM, IN_PLACE))
        faults = [
            {"kind": kind, "step": self.rng.randrange(1, _LATEST[kind]), "rank": self.rng.randrange(WORLD)}
            for kind in in_place
        ]
        number, finished = 0, False
        while at_random or not finished:
            out = f"disturbed{number}"
            finished = self._until_it_ends(out, faults, at_random, longest_pause)
            if finished:
                self._compare(out, expected)
                number, faults = number + 1, []

    def _until_it_ends(self, out: str, faults: list[dict[str, Any]], left: list[str], longest_pause: float) -> bool:
        """Give the command once, and kill what is next while it trains; True when it ended with 0."""
        driver = self._start(out, faults)
        fatal = None
        while left and fatal is None and self._ended(driver, self.rng.uniform(0.5, longest_pause)) is None:
            if (killed := self._kill(left[0], driver, self._run(out))) is None:
                continue
            kind = left.pop(0)
            self.counts[kind] += 1
            self.say(f"killed: {kind:7s} {killed}")
            fatal = kind if kind == "driver" else None  # the driver starts another Ray itself
        code = self._ended(driver, HANG_SECONDS if fatal else 900.0)
        if code is None:
            self.problems.append(f"the driver hung after a kill of {fatal}")
            driver.kill()
            driver.wait()
        elif code != 0 and fatal is None:
            self.problems.append(f"the command ended with {code}: {self._log(out)}")
        for one in events(self._run(out)):
            if one["event"] == "fault" and (key := f"{out}-{one['time']}") not in self.counts:
                self.counts[key] = 0
                self.counts[one["kind"]] += 1
                self.say(f"killed: {one['kind']} of rank {one['rank']} at step {one['step']}")
        return code == 0

    def _kill(self, kind: str, driver: subprocess.Popen[bytes], run: Path) -> str | None:
        """Kill one process of a kind while ranks train; None when there is none, or no rank yet."""
        beats = read_beats(run)
        ranks = {beat.pid: beat for beat in beats.values() if process_started(beat.pid) == beat.started}
        steps = any(beat.phase == "step" for beat in ranks.values())
        if not ranks or (not steps and self.rng.random() < 0.8):  # most while it trains, some while it starts
            return None
        if kind != "rank":
            found = self.site.victims(kind, driver)
            return kill_one(found, self.rng) if found else None
        beat = ranks[self.rng.choice(sorted(ranks))]
        os.kill(beat.pid, signal.SIGKILL)
        return f"{beat.rank} at step {beat.step} ({beat.phase})"

    def _ended(self, driver: subprocess.Popen[bytes], seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while driver.poll() is None and time.monotonic() < until:
            self.site.family(driver.pid)
            time.sleep(0.05)
        return driver.poll()

    def _compare(self, out: str, expected: Path) -> None:
        found, wanted = weights(self._run(out), STEPS), weights(expected, STEPS)
        different = [name for name in wanted if not torch.equal(found[name], wanted[name])]
        records = [json.loads((run / "done.json").read_text()) for run in (self._run(out), expected)]
        different += [name for name in LEDGER if records[0][name] != records[1][name]]
        attempts = records[0]["attempts"]
        self.say(f"finished after {attempts} attempts: {len(wanted)} tensors, {len(different)} differences")
        self.problems += [f"{out}: {name} differs" for name in different]

    def _start(self, out: str, faults: list[dict[str, Any]]) -> subprocess.Popen[bytes]:
        self._started += 1
        folder = self.work / out
        if not folder.exists():
            folder.mkdir()
            (folder / "corpus").symlink_to(self.work / "corpus")
        training = json.dumps({**_TRAINING, "faults": faults})
        command = [sys.executable, "-m", "pipeline.cli", "train", str(ROOT / "configs" / "quickstart.yaml")]
        places = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.work), "OMP_NUM_THREADS": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        with open(self.work / f"{out}.log", "ab") as log:
            return subprocess.Popen(
                [*command, *_SETTINGS, f"training={training}", "--out", str(folder)],
                cwd=self.work,
                env={**environment, **places},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _run(self, out: str) -> Path:
        return self.work / out / "runs" / RUN

    def _log(self, out: str) -> str:
        lines = (self.work / f"{out}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def campaign(kills: int, seed: int, longest_pause: float, *, keep: bool = False, say: Say = print) -> TrainChaos:
    """So many kills, every kind about as often, in an order and at moments that the seed gives."""
    rng = random.Random(seed)
    kinds = [(*AT_RANDOM, *IN_PLACE)[i % 5] for i in range(kills)]
    rng.shuffle(kinds)
    say(f"seed {seed}: {', '.join(kinds)}")
    with work_folder(keep=keep) as work:
        chaos = TrainChaos(work, rng, say)
        try:
            chaos.disturb(chaos.undisturbed(), kinds, longest_pause)
        finally:
            chaos.site.leftovers(60.0)
    return chaos


def main() -> int:
    """A campaign, told as it goes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=12.0, help="the longest pause before a kill, seconds")
    parser.add_argument("--keep", action="store_true", help="leave logs and runs where they are")
    chosen = parser.parse_args()
    began = time.monotonic()
    chaos = campaign(
        chosen.kills, chosen.seed, chosen.pause, keep=chosen.keep, say=lambda line: print(line, flush=True)
    )
    for problem in chaos.problems:
        print(f"problem: {problem}")
    counted = ", ".join(f"{kind} {count}" for kind, count in sorted(chaos.counts.items()) if count)
    verdict = f"{len(chaos.problems)} problems" if chaos.problems else "every bit is the same"
    print(f"kills: {counted}; in {time.monotonic() - began:.0f} s: {verdict}")
    return 1 if chaos.problems else 0


if __name__ == "__main__":
    sys.exit(main())
