"""MB of text a second of CPU of the fast token engines, beside `tokenizers.encode_batch_fast` on the same text.

    ELECTRA_TEST_DATA=... python -m tests.benchmarks.engines [MB]

English, sentence by sentence as rows are made, and document by document. "cold" is the first pass of a new engine,
"warm" the best of three more; the reference sees a tenth of the documents. Beside it stands what its own ids cost as
flat arrays (`Tokenizer.encode_flat`); the last line of a vocabulary says what the running check costs.
"""

import os
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy as np

from data_prep import engines, tokenizer
from data_prep import sentences as splitter
from data_prep.engines import CheckedEncoder, Engine
from data_prep.tokenizer import Tokenizer
from tests.benchmarks.texts import documents, megabytes, seconds

VOCABULARIES = ("bert-base-uncased", "roberta-base")


def build(reference: Tokenizer) -> Engine:
    engine = engines.fast_engine(reference)
    if isinstance(engine, str):
        raise SystemExit(engine)
    return engine


def measure(name: str, path: Path, texts: list[str]) -> None:
    reference = tokenizer.load(path)
    sentences = splitter.split(texts)[0]
    tenth = texts[::10]
    for unit, all_texts, few in (("sentences", sentences, splitter.split(tenth)[0]), ("documents", texts, tenth)):
        engine = build(reference)
        engine.encode_flat(["imports are not encoding"])
        size, small = megabytes(all_texts), megabytes(few)
        cold = size / seconds(lambda: engine.encode_flat(all_texts))  # noqa: B023
        warm = size / seconds(lambda: engine.encode_flat(all_texts), 3)  # noqa: B023
        theirs = small / seconds(
            lambda: [e.ids for e in reference._tokenizer.encode_batch_fast(few, add_special_tokens=False)]  # noqa: B023
        )
        flat = small / seconds(lambda: reference.encode_flat(few))  # noqa: B023
        print(
            f"{name} {unit:9} {len(all_texts):>7,}: {engine.name} cold {cold:6.1f} warm {warm:6.1f} MB/s; "
            f"encode_batch_fast {theirs:4.2f} (ratio {cold / theirs:.0f} to {warm / theirs:.0f}); "
            f"encode_flat {flat:4.2f} ({flat / theirs:.2f})"
        )
    encoder = CheckedEncoder(reference, build(reference))
    check_cost(name, encoder, texts)


def check_cost(name: str, encoder: CheckedEncoder, texts: list[str]) -> None:
    """Every tenth document is sampled here: a thousandth of so few is a matter of luck. Key 0 is in every sample."""
    keys = np.ones(len(texts), dtype=np.uint64)
    plain = seconds(lambda: encoder.encode(texts, keys), 3)
    assert encoder.checked == 0, "key 1 is in no sample"
    keys[::10] = 0
    sampled = seconds(lambda: encoder.encode(texts, keys))
    extra = (sampled - plain) / encoder.checked * len(texts) / 2**engines.SAMPLE_BITS / megabytes(texts)
    print(f"{name} running check: {extra * 1e3:.2f} ms a MB, {extra * 60:.1%} of a pipeline of 60 MB/s")


if __name__ == "__main__":
    data = Path(os.environ["ELECTRA_TEST_DATA"])
    sample = list(documents(float(sys.argv[1]) if len(sys.argv) > 1 else 12.0))
    print(f"{len(sample):,} documents, {megabytes(sample):.1f} MB")
    for vocabulary in VOCABULARIES:
        measure(vocabulary, data / "vocab" / vocabulary, sample)
