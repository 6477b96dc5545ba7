"""Kill a preparation at random moments, again and again, and compare what it ends with to an undisturbed one.

By hand, on the corpora in ELECTRA_TEST_DATA: `python -m tests.pipeline.chaos --kills 20 --nodes 1`. The undisturbed run
has one CPU, the disturbed one two, or two Ray nodes. After every death of the driver the same command is given again; a
corpus that is finished before all kills are done is compared and begun anew. Exits with 1 when any file differs, is
missing or is there too much, when a run ends by itself otherwise than with 0, or does not end. Of commit records, the
seconds a unit took are not compared.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.pipeline.chaos_sites import HEAD, Embedded, Site, TwoNodes, kill_one

ROOT = Path(__file__).resolve().parents[2]
HANG_SECONDS = 180.0  # a driver whose Ray has died and that still lives after this hangs
UNDISTURBED_SECONDS = 1800.0
LINGER_SECONDS = 120.0  # Ray's agents follow a killed driver within about one minute
_RUN_DEPENDENT = ("cpu_seconds",)

Say = Callable[[str], None]


def experiment(corpus: dict[str, Any]) -> dict[str, Any]:
    """The experiment of the quickstart with another corpus."""
    quickstart: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text(encoding="utf-8"))
    return {**quickstart, "name": "chaos", "corpus": corpus}


def real_corpus(data: Path, work: Path) -> dict[str, Any]:
    """Every real corpus: archives as they are, the largest one plain so that it is cut by ranges, a Wikipedia dump."""
    import zstandard

    plain = work / "novels98.jsonl"
    with open(data / "corpus" / "novels98.jsonl.zst", "rb") as source, open(plain, "wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    archives = sorted((data / "corpus").glob("*.jsonl.zst"))
    (dump,) = (data / "corpus" / "raw").glob("*.bz2")
    return {
        "sources": [
            {"kind": "jsonl", "path": str(plain), "id_field": "id"},
            *({"kind": "jsonl", "path": str(path)} for path in archives if not path.name.startswith("novels98")),
            {"kind": "wikipedia", "path": str(dump)},
        ],
        "near_duplicates": {},
        "decontamination": {
            "sets": [{"name": name, "path": str(data / name)} for name in ("glue", "squad")],
            "policy": "cut",
        },
        "tokenizer": {"kind": "wordpiece", "vocab_size": 8192, "sample_bytes": 2_000_000},
        "layout": "packed",
        "seq_len": 128,
        "heldout_fraction": 0.02,
        "unit_bytes": 2_500_000,
        "rows_per_shard": 2048,
    }


@contextmanager
def work_folder(*, keep: bool = False) -> Iterator[Path]:
    """A folder with a short name, since the embedded Ray keeps its sockets below it; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class Chaos:
    """A campaign in `work` on the experiment in `config`."""

    def __init__(self, work: Path, config: Path, site: Site, rng: random.Random, say: Say = print) -> None:
        self.work, self.config, self.site, self.rng, self.say = work, config, site, rng, say
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._runs = 0

    def undisturbed(self) -> Path:
        """Prepare with one CPU and without a kill; returns the corpus."""
        started = time.monotonic()
        out = self.work / "undisturbed"
        driver, log = self._start(out, ["cluster.num_cpus=1"])
        code = _wait(driver, UNDISTURBED_SECONDS)
        if code != 0:
            raise RuntimeError(f"the undisturbed run ended with {code}:\n{log.read_text(errors='replace')[-2000:]}")
        self.say(f"undisturbed, one CPU: {time.monotonic() - started:.0f} s")
        return out / "corpus"

    def disturb(self, expected: Path, kinds: Sequence[str], longest_pause: float) -> None:
        """One kill of each of `kinds` in turn, each after a random pause, and on until a run ends with 0."""
        wanted = content(expected)
        left = list(kinds)
        corpora = 0
        finished = False
        while left or not finished:
            out = self.work / f"disturbed{corpora}"
            finished = self._until_it_ends(out, left, longest_pause)
            if finished:
                self._compare(out, wanted)
                corpora += 1

    def _until_it_ends(self, out: Path, left: list[str], longest_pause: float) -> bool:
        """Give the command once, and kill what is next on the list while it runs; True when it ended with 0."""
        driver, log = self._start(out, self.site.overrides())
        began = time.monotonic()
        fatal = None
        while left and fatal is None and _wait(driver, self.rng.uniform(0.0, longest_pause)) is None:
            killed = self._kill(left[0], driver)
            if killed is None:
                continue
            kind = left.pop(0)
            self.counts[kind] += 1
            self.say(
                f"kill {sum(self.counts.values()):2d}: {kind:6s} {killed} {time.monotonic() - began:5.1f} s after "
                f"the start, {_stage(log)}"
            )
            fatal = kind if kind == "driver" or kind in HEAD else None
            if fatal is None:
                self.site.mend(kind)
        return self._ended(driver, log, fatal)

    def _kill(self, kind: str, driver: subprocess.Popen[bytes]) -> str | None:
        """Kill one process of `kind`, as soon as there is one; None when the driver ends before that."""
        while driver.poll() is None:
            candidates = self.site.victims(kind, driver)
            if candidates and (killed := kill_one(candidates, self.rng)):
                return killed
            time.sleep(0.02)
        return None

    def _ended(self, driver: subprocess.Popen[bytes], log: Path, fatal: str | None) -> bool:
        started = time.monotonic()
        limit = HANG_SECONDS if fatal else UNDISTURBED_SECONDS
        code = _wait(driver, limit, watch=lambda: self.site.family(driver.pid))
        took = time.monotonic() - started
        said = log.read_text(errors="replace")
        last = (said.strip().splitlines() or [""])[-1]
        if code is None:
            self.problems.append(f"the driver hung for {limit:.0f} s after a kill of {fatal} ({_stage(log)})")
            driver.kill()
            driver.wait()
        elif fatal is None and code != 0:
            self.problems.append(f"the command ended with {code}: {last}")
        if fatal in HEAD:
            self.say(f"         the driver ended with {code} after {took:.1f} s: {last[:300]}")
            if "Traceback" in said:
                self.problems.append(f"a traceback after the head was killed ({log.name}): {last[:300]}")
        if fatal is not None:
            self.site.mend(fatal)
        elif code != 0:
            self.site.mend(HEAD[0])  # whatever it was, the next attempt begins with a whole cluster
        return code == 0

    def _compare(self, out: Path, wanted: dict[str, str]) -> None:
        found = content(out / "corpus")
        different = differences(wanted, found)
        verify = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "verify", str(out)],
            cwd=self.work, env=self._environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if verify.returncode != 0:
            different.append(f"electra verify: {verify.stderr.strip()[-300:]}")
        self.say(f"finished after {sum(self.counts.values())} kills: {len(found)} files, {len(different)} differences")
        self.problems += [f"{out.name}: {difference}" for difference in different]

    def _start(self, out: Path, overrides: Sequence[str]) -> tuple[subprocess.Popen[bytes], Path]:
        self._runs += 1
        log = self.work / f"run{self._runs:03d}.log"
        command = [sys.executable, "-m", "pipeline.cli", "prepare", str(self.config), *overrides, "--out", str(out)]
        with open(log, "wb") as output:
            driver = subprocess.Popen(
                command, cwd=self.work, env=self._environment(), stdout=output, stderr=subprocess.STDOUT
            )
        return driver, log

    def _environment(self) -> dict[str, str]:
        places = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.work), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **self.site.environment, **places}


def content(corpus: Path) -> dict[str, str]:
    """Name → SHA-256 of every file of a corpus."""
    return {
        path.relative_to(corpus).as_posix(): hashlib.sha256(_lasting(path)).hexdigest()
        for path in sorted(corpus.rglob("*"))
        if path.is_file()
    }


def _lasting(path: Path) -> bytes:
    """A file's bytes; of a commit record without what differs from run to run."""
    data = path.read_bytes()
    if path.suffix != ".json":
        return data
    value = json.loads(data)
    if not isinstance(value, dict) or value.keys() != {"identity", "result"}:
        return data
    result = {key: item for key, item in value["result"].items() if key not in _RUN_DEPENDENT}
    return json.dumps({**value, "result": result}, sort_keys=True).encode()


def differences(wanted: dict[str, str], found: dict[str, str]) -> list[str]:
    """What is wrong with `found`, a line a file."""
    missing = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    extra = [f"{name} is there too much" for name in sorted(found.keys() - wanted.keys())]
    changed = [f"{name} differs" for name in sorted(wanted.keys() & found.keys()) if wanted[name] != found[name]]
    return missing + extra + changed


def _wait(driver: subprocess.Popen[bytes], seconds: float, watch: Callable[[], Any] = lambda: None) -> int | None:
    """The exit code, or None when it still runs after so long; `watch` is called every second."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        watch()
        try:
            return driver.wait(timeout=min(1.0, left))
        except subprocess.TimeoutExpired:
            continue
    return driver.poll()


def _stage(log: Path) -> str:
    """The stage the driver last spoke of."""
    found = re.findall(r"^(prepare [^:\n]+?|ray):", log.read_text(errors="replace"), flags=re.MULTILINE)
    return found[-1] if found else "before the first stage"


def main() -> int:
    """The campaign on the real corpora."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=20.0, help="the longest pause before a kill, seconds")
    parser.add_argument("--keep", action="store_true", help="leave logs and corpora where they are")
    parser.add_argument("--data", type=Path, default=os.environ.get("ELECTRA_TEST_DATA"))
    chosen = parser.parse_args()
    if chosen.data is None:
        parser.error("--data, or ELECTRA_TEST_DATA, must name the test data")
    rng = random.Random(chosen.seed)
    with work_folder(keep=chosen.keep) as work:
        config = work / "chaos.yaml"
        config.write_text(yaml.safe_dump(experiment(real_corpus(chosen.data, work))), encoding="utf-8")
        site: Site = Embedded() if chosen.nodes == 1 else TwoNodes(work, ROOT)
        chaos = Chaos(work, config, site, rng, say=lambda line: print(line, flush=True))
        started = time.monotonic()
        try:
            # every kind about as often, in random order
            kinds = [site.kinds[i % len(site.kinds)] for i in range(chosen.kills)]
            rng.shuffle(kinds)
            chaos.disturb(chaos.undisturbed(), kinds, chosen.pause)
        finally:
            site.close()
            left = site.leftovers(LINGER_SECONDS)
    if left:
        chaos.problems.append(f"processes that outlived their driver by minutes: {', '.join(sorted(left))}")
    for problem in chaos.problems:
        print(f"problem: {problem}")
    counted = ", ".join(f"{kind} {count}" for kind, count in sorted(chaos.counts.items()))
    verdict = "every file is the same" if not chaos.problems else f"{len(chaos.problems)} problems"
    print(f"{sum(chaos.counts.values())} kills ({counted}) in {time.monotonic() - started:.0f} s: {verdict}")
    return 1 if chaos.problems else 0


if __name__ == "__main__":
    sys.exit(main())
