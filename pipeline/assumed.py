"""A corpus that is not prepared yet, as planning sees it: rows that are full to the last token.

Runs are planned from a manifest's totals (`training.run`); this makes one of the settings alone. Full rows are the
dearest there are, so steps planned from them are a few too few, and whoever shows figures made of it has to say so.
The vocabulary has as many entries as are asked for; one that lies in a file is looked at.
"""

from pathlib import Path

from data_prep.corpus import CorpusConfig
from data_prep.manifest import Documents, Manifest, ShardEntry, SplitStats
from data_prep.rows import SpecialIds

ROWS = 256
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
WORDS = 5  # the first id that is none of them


def assumed_manifest(corpus: CorpusConfig) -> Manifest:
    """The manifest of `ROWS` full rows of one fragment, pairs where the layout is `segments`."""
    squares = ROWS * corpus.seq_len**2
    shard = ShardEntry(name="assumed", bytes=0, sha256="assumed", members=0, rows=ROWS, first_row=0, unit=0)
    split = SplitStats(
        rows=ROWS,
        tokens=ROWS * corpus.seq_len,
        fragments=ROWS,
        sum_L=ROWS * corpus.seq_len,
        sum_L2=squares,
        row_lengths=[0] * corpus.seq_len + [ROWS],
        rows_with_pair=ROWS if corpus.layout == "segments" else 0,
        unk=0,
        shards=[shard],
    )
    vocab_size = vocabulary_size(corpus)
    return Manifest(
        config_sha256="assumed",
        inputs_sha256="assumed",
        seed=0,
        tokenizer_sha256="assumed",
        vocab_size=vocab_size,
        special=SPECIAL,
        layout=corpus.layout,
        pair_separators=2 if corpus.tokenizer.kind == "bpe" else 1,
        seq_len=corpus.seq_len,
        dtype="uint16" if vocab_size < 0xFFFF else "uint32",
        units=1,
        documents=Documents(documents_in=0, out=0, train=0, heldout=0, text_bytes=0, rejected={}, topics={}),
        heldout_documents=[],
        train=split,
        heldout=split,
        sources=[],
    )


def vocabulary_size(corpus: CorpusConfig) -> int:
    """Of the vocabulary in a file, where there is one already; else as many entries as are to be learned at most."""
    config = corpus.tokenizer
    if config.path is None or "://" in config.path or not Path(config.path).exists():
        return config.vocab_size
    from data_prep import tokenizer

    return tokenizer.load(Path(config.path), lowercase=config.lowercase).vocab_size


def is_assumed(manifest: Manifest) -> bool:
    """Whether a manifest is one of these."""
    return manifest.inputs_sha256 == "assumed"
