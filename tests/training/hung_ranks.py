"""Ranks for tests/training/test_watchdog.py: processes in a gloo group that do little but wait for one another.

What a rank does wrong at step 3 is told by a word: `stop` (SIGSTOP), `hang` (sleeps), `late` (does so for seconds that
are allowed), `raise`. Clocks are set apart by days.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from training.settings import WatchdogConfig
from training.watchdog import Watchdog

STEPS, WRONG_AT, LATE = 5, 3, 0.8


def oversleep() -> None:
    time.sleep(3600.0)


def go_wrong(word: str) -> None:
    if word == "stop":
        time.sleep(0.5)  # beats of this place go out
        os.kill(os.getpid(), signal.SIGSTOP)
    if word == "hang":
        oversleep()
    if word == "late":
        time.sleep(LATE)
    if word == "raise":
        raise ValueError("of its own")


def run_rank(rank: int, words: Sequence[str], run_dir: Path, configs: Sequence[WatchdogConfig]) -> None:
    """A process of the group; ends with 0, or as the watchdog has it."""
    sys.stderr = open(run_dir / f"stderr-{rank}", "w", buffering=1)  # noqa: SIM115
    torch.set_num_threads(1)
    store = f"file://{run_dir}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(words))
    skewed = time.time() + 86400.0 * (rank - 1)
    with patch("time.time", lambda: skewed), Watchdog(run_dir, rank, len(words), configs[rank]) as watchdog:
        for step in range(STEPS):
            watchdog.progress("train", step)
            if step == WRONG_AT:
                go_wrong(words[rank])
            dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def run_group(words: Sequence[str], run_dir: Path, *configs: WatchdogConfig) -> list[int | None]:
    """Run a rank for every word, with a configuration each or one for all; returns their exit codes, by signal a
    negative one."""
    configs = configs if len(configs) > 1 else configs * len(words)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ranks = [context.Process(target=run_rank, args=(rank, words, run_dir, configs)) for rank in range(len(words))]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(30.0)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return codes
