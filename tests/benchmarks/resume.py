"""How long a killed run takes to train again: `python -m tests.benchmarks.resume`.

A small CPU run is cut after a checkpoint; a new process resumes it. Told apart are the imports, which every process of
these libraries pays, and what is ours: the checkpoint is chosen and hashed, the corpus opened, networks and engine
built, the state restored and proved, and the first step made. Seconds by the clock and of the CPU.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path


def resume(corpus: Path, run_dir: Path) -> None:
    """In a process of its own, which ends with the first step."""
    import torch.distributed as dist

    from tests.training.runs import CPU, ELECTRA, spec_for
    from training.attempt import Attempt
    from training.engine.zero import _prepare_deepspeed
    from training.loop import train

    _prepare_deepspeed(CPU)
    imported = time.monotonic(), time.process_time()
    print(f"imports:              {imported[1]:5.1f} s of the CPU", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)

        def ended(self: Attempt, seconds: float) -> None:
            clock, cpu = time.monotonic() - imported[0], time.process_time() - imported[1]
            print(
                f"to the first step:    {cpu:5.1f} s of the CPU, {clock:.1f} s by the clock (10 are allowed)",
                flush=True,
            )
            raise KeyboardInterrupt

        Attempt._advance = ended  # type: ignore[method-assign]
        try:
            train(spec_for(ELECTRA, corpus, checkpoints={"every": 6}), corpus, run_dir, CPU)
        except KeyboardInterrupt:
            return


def main() -> None:
    from tests.training.synthetic import write_corpus

    with tempfile.TemporaryDirectory(prefix="electra-") as folder:
        corpus, run_dir = Path(folder) / "corpus", Path(folder) / "run"
        write_corpus(corpus)
        first = (
            "import tempfile, torch.distributed as dist\n"
            "from pathlib import Path\n"
            "from tests.training.runs import CPU, ELECTRA, cut_back, spec_for\n"
            "from training.loop import train\n"
            f"corpus, run_dir = Path({str(corpus)!r}), Path({str(run_dir)!r})\n"
            "dist.init_process_group('gloo', init_method=f'file://{tempfile.mkdtemp()}/store', rank=0, world_size=1)\n"
            "train(spec_for(ELECTRA, corpus, checkpoints={'every': 6}), corpus, run_dir, CPU)\n"
            "cut_back(run_dir, 18)\n"
        )
        subprocess.run([sys.executable, "-c", first], check=True)
        places = f"Path({str(corpus)!r}), Path({str(run_dir)!r})"
        again = f"from pathlib import Path; from tests.benchmarks.resume import resume; resume({places})"
        subprocess.run([sys.executable, "-c", again], check=True)


if __name__ == "__main__":
    main()
