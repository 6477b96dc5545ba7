"""Peak memory of preparing a corpus: `python -m tests.benchmarks.memory`.

The documents and rows stages, each case in a process of its own: 10 and 100 MB of documents of a few kilobytes, whose
peaks should hardly differ, and one document of 50 MB. Resident memory at its peak, which includes what the libraries
take before any text is there.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tests.benchmarks.prepare import CONTROL_ONLY, Road, config
from tests.benchmarks.texts import documents, write_jsonl


def peak(path: Path, vocabulary: Path, folder: Path) -> float:
    """In this process: the stages over `path`; MB at the peak."""
    road = Road(config(path, "packed", CONTROL_ONLY, vocabulary), folder)
    road.documents()
    sha256 = road.tokenizer()
    road.rows(sha256, road.verdict(sha256))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print a line a case and the ratio."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {f"{size} MB of documents of 2.6 KB": folder / f"{size}.jsonl" for size in (10, 100)}
        for size in (10, 100):
            write_jsonl(folder / f"{size}.jsonl", size)
        cases["one document of 50 MB"] = folder / "one.jsonl"
        with (folder / "one.jsonl").open("w") as file:
            file.write(json.dumps({"text": "\n".join(documents(50))}) + "\n")
        first = Road(config(folder / "10.jsonl", "packed", CONTROL_ONLY), folder / "vocabulary")
        first.documents()
        first.tokenizer()
        peaks = []
        for case, path in cases.items():
            command = [sys.executable, "-m", "tests.benchmarks.memory", str(path), str(folder / "vocabulary/tokenizer")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(float(done.stdout))
            print(f"  {case:<34}{peaks[-1]:8.0f} MB")
        print(f"  100 MB against 10 MB: {peaks[1] / peaks[0]:.2f} ×")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        with tempfile.TemporaryDirectory() as name:
            print(peak(Path(sys.argv[1]), Path(sys.argv[2]), Path(name)))
    else:
        main()
