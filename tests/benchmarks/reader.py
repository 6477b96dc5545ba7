"""Speed of reading rows: `python -m tests.benchmarks.reader [MEGABYTES]`, CPU time of one core, everything in memory.

Random rows of 512 ids from our shards, a batch at a time, by position in the stream and without the order; beside them
`webdataset` reading the same rows one a member, in the order of the file, which is the fastest it can.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_prep.manifest import Manifest
from data_prep.order import OrderConfig, order_of
from data_prep.reader import RowReader
from tests.shard_files import make_rows, write_corpus

SEQ_LEN, VOCAB = 512, 30_522
READ = 262_144  # rows a measurement
PEER_ROWS = 16_384


def rate(rows: int, work: Callable[[], object], repeats: int = 3) -> float:
    """Rows a second of CPU time, the best of a few runs."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return rows / min(times)


def write_one_row_members(path: Path, rows: np.ndarray) -> None:
    import webdataset

    with webdataset.TarWriter(str(path), encoder=False) as tar:
        for number, row in enumerate(rows.astype("<u2")):
            tar.write({"__key__": f"{number:08d}", "u16": row.tobytes()})


def read_one_row_members(path: Path) -> int:
    import webdataset

    samples = webdataset.WebDataset([str(path)], shardshuffle=False)
    return sum(len(np.frombuffer(sample["u16"], "<u2")) for sample in samples)


def by_position(reader: RowReader, manifest: Manifest, batch: int, window_shards: int | None) -> None:
    order = order_of(manifest, "train", 0, OrderConfig(window_shards=window_shards))
    for start in range(0, READ, batch):
        reader.rows(order.locate(np.arange(start, start + batch))[1])


def main(megabytes: float) -> None:
    rows = make_rows(int(megabytes * 1e6) // (2 * SEQ_LEN), SEQ_LEN, VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        peer_file = Path(folder) / "peer.tar"
        write_one_row_members(peer_file, rows[:PEER_ROWS])
        peer = rate(len(rows[:PEER_ROWS]), lambda: read_one_row_members(peer_file))
        print(f"webdataset, one row a member, in order        {peer / 1e6:6.3f} M rows/s")

        manifest = write_corpus(Path(folder) / "corpus", rows, vocab_size=VOCAB, rows_per_shard=8_192)
        reader = RowReader(Path(folder) / "corpus", "train", manifest)
        reader.rows(np.arange(len(rows)))  # warm
        wanted = np.random.default_rng(1).integers(0, len(rows), READ)
        for batch in (32, 256, 2048):
            ours = rate(READ, lambda: [reader.rows(wanted[s : s + batch]) for s in range(0, READ, batch)])  # noqa: B023
            print(f"random rows, batches of {batch:5}                 {ours / 1e6:6.3f} M rows/s, {ours / peer:5.1f} ×")
        for window_shards in (None, 2):
            ours = rate(READ, lambda: by_position(reader, manifest, 256, window_shards))  # noqa: B023
            name = f"order and rows, 256, windows of {window_shards or 'all'}"
            print(f"{name:44}  {ours / 1e6:6.3f} M rows/s, {ours / peer:5.1f} ×")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 200)
