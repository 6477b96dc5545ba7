"""An index of the word n-grams of evaluation texts, and the search for them in documents.

A text of `n` or more words is indexed by all its n-grams; one of at least `floor` words by all of them together, found
by its first `floor` words; a shorter one is not indexed. Both sides are streams of words (`data_prep.shingles`), so
case, punctuation and line breaks do not matter.

A hit is confirmed word by word, by 64-bit hashes of the words: for a false one all `floor` or `n` of them would have
to collide. Of the texts that share an n-gram
`_SHARED` are kept: more of them would add nothing to what is removed, only to the counts of examples.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep import sections, shingles
from data_prep.shingles import Hashes
from data_prep.storage import Folder

Integers = NDArray[np.int64]

_SHARED = 64
_BATCH_TEXTS = 10_000
_MAX_FILTER_BITS = 27


@dataclass(frozen=True, slots=True)
class Grams:
    """Where in the index's words n-grams begin, sorted by their hash."""

    hashes: Hashes  # [n]
    places: Integers  # [n]


@dataclass(frozen=True, slots=True)
class Index:
    """Evaluation texts, by their words."""

    words: Hashes  # of all indexed texts, one after another
    ends: Integers  # [texts], running end of each text's words
    examples: Integers  # [texts], the example each text belongs to
    long: Grams  # all n-grams of texts of n words and more
    short: Grams  # the first words of shorter ones


@dataclass(frozen=True, slots=True)
class Hits:
    """Matches of evaluation texts in a batch of documents, sorted by document and place."""

    document: Integers  # [n], in the batch
    word: Integers  # [n], first word of the match, counted within the document
    length: Integers  # [n], words
    example: Integers  # [n]
    short: NDArray[np.bool_]  # [n], found as a whole text of less than n words

    def by_document(self) -> Iterator[tuple[int, "Hits"]]:
        """The documents that are hit, each with its hits."""
        documents = np.unique(self.document)
        starts = np.searchsorted(self.document, documents).tolist()
        stops = np.searchsorted(self.document, documents, side="right").tolist()
        for document, start, stop in zip(documents.tolist(), starts, stops, strict=True):
            own = slice(start, stop)
            yield (
                document,
                Hits(self.document[own], self.word[own], self.length[own], self.example[own], self.short[own]),
            )


def build(texts: Iterable[tuple[int, str]], n: int, floor: int) -> Index:
    """The index of (example, text)s."""
    words, counts, examples = [np.empty(0, dtype=np.uint64)], [np.empty(0, dtype=np.int64)], []
    batch: list[str] = []

    def add() -> None:
        made = shingles.words(batch)
        words.append(made.hashes)
        counts.append(made.ends - made.starts)
        batch.clear()

    for example, text in texts:
        examples.append(example)
        batch.append(text)
        if len(batch) == _BATCH_TEXTS:
            add()
    add()
    lengths, all_words = np.concatenate(counts), np.concatenate(words)
    kept = lengths >= floor
    ends = np.cumsum(lengths[kept])
    index_words = all_words[np.repeat(kept, lengths)]
    begins, long = shingles.starts(ends), lengths[kept] >= n
    grams = shingles.ngrams(index_words, n)
    places = _within(begins[long], ends[long] - n + 1 - begins[long])
    firsts = shingles.ngrams(index_words, floor)[begins[~long]]
    return Index(
        words=index_words,
        ends=ends,
        examples=np.array(examples, dtype=np.int64)[kept],
        long=_sorted_grams(grams[places], places, np.searchsorted(ends, places, side="right")),
        short=_sorted_grams(firsts, begins[~long], np.flatnonzero(~long)),
    )


def _sorted_grams(hashes: Hashes, places: Integers, texts: Integers) -> Grams:
    """Once for each text, and for no more than `_SHARED` texts."""
    order = np.lexsort((places, texts, hashes))
    hashes, places, texts = hashes[order], places[order], texts[order]
    new = np.ones(len(hashes), dtype=np.bool_)
    new[1:] = (hashes[1:] != hashes[:-1]) | (texts[1:] != texts[:-1])
    hashes, places = hashes[new], places[new]
    nth = np.arange(len(hashes)) - np.searchsorted(hashes, hashes)
    return Grams(hashes[nth < _SHARED], places[nth < _SHARED])


def save(index: Index, corpus: Folder, name: str) -> None:
    """Write the index."""
    parts = [index.words, index.ends, index.examples]
    parts += [index.long.hashes, index.long.places, index.short.hashes, index.short.places]
    sections.write(corpus, name, (part.astype("<u8") for part in parts), len(parts))


def load(corpus: Folder, name: str) -> Index:
    """Read what `save` wrote. DataError: it is missing or cut."""
    parts = [sections.read(corpus, name, "<u8", 7, part, part + 1) for part in range(7)]
    ends, examples, long, short = (parts[part].astype(np.int64) for part in (1, 2, 4, 6))
    return Index(parts[0], ends, examples, Grams(parts[3], long), Grams(parts[5], short))


class Searcher:
    """Finds the texts of an index in documents; made once for many batches."""

    def __init__(self, index: Index, n: int, floor: int) -> None:
        self._index, self._n, self._floor = index, n, floor
        self._long, self._short = _Lookup(index.long), _Lookup(index.short)

    def find(self, documents: shingles.Words) -> Hits:
        """All matches in a batch of documents."""
        index = self._index
        at, place = self._candidates(documents, self._long, self._n)
        kept = _equal(documents.hashes, at, index.words, place, np.full(len(at), self._n))
        at, place = at[kept], place[kept]
        short_at, short_place = self._candidates(documents, self._short, self._floor)
        length = index.ends[np.searchsorted(index.ends, short_place, side="right")] - short_place
        fits = short_at + length <= documents.ends[np.searchsorted(documents.ends, short_at, side="right")]
        short_at, short_place, length = short_at[fits], short_place[fits], length[fits]
        kept = _equal(documents.hashes, short_at, index.words, short_place, length)
        words = np.concatenate([at, short_at[kept]])
        document = np.searchsorted(documents.ends, words, side="right")
        text = np.searchsorted(index.ends, np.concatenate([place, short_place[kept]]), side="right")
        order = np.argsort(words, kind="stable")
        return Hits(
            document=document[order],
            word=(words - documents.starts[document])[order],
            length=np.concatenate([np.full(len(at), self._n), length[kept]])[order],
            example=index.examples[text][order],
            short=(np.arange(len(words)) >= len(at))[order],
        )

    def _candidates(self, documents: shingles.Words, lookup: "_Lookup", n: int) -> tuple[Integers, Integers]:
        """Words of documents, and places of the index, at which the same n-gram hash begins."""
        at, place = lookup.find(shingles.ngrams(documents.hashes, n))
        inside = at + n <= documents.ends[np.searchsorted(documents.ends, at, side="right")]
        return at[inside], place[inside]


class _Lookup:
    """Hash → places. A table of the upper bits turns away nearly all that is not there."""

    def __init__(self, grams: Grams) -> None:
        self._grams = grams
        bits = min(_MAX_FILTER_BITS, (16 * len(grams.hashes)).bit_length() + 1)
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(1 << bits, dtype=np.bool_)
        self._table[(grams.hashes >> self._shift).astype(np.int64)] = True

    def find(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Every (number in `hashes`, place) with the same hash."""
        maybe = np.flatnonzero(self._table.take((hashes >> self._shift).view(np.int64)))
        first = np.searchsorted(self._grams.hashes, hashes[maybe])
        counts = np.searchsorted(self._grams.hashes, hashes[maybe], side="right") - first
        return np.repeat(maybe, counts), self._grams.places[_within(first, counts)]


def _within(begins: Integers, counts: Integers) -> Integers:
    """`begin, begin + 1, …`, `count` of them, for every begin."""
    return np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)


def _equal(a: Hashes, at_a: Integers, b: Hashes, at_b: Integers, lengths: Integers) -> NDArray[np.bool_]:
    """`[n]`: whether the words from `at_a` and `at_b` on are the same for these lengths."""
    equal = np.ones(len(at_a), dtype=np.bool_)
    for offset in range(int(lengths.max(initial=0))):
        alive = np.flatnonzero(equal & (lengths > offset))
        equal[alive] = a[at_a[alive] + offset] == b[at_b[alive] + offset]
    return equal
