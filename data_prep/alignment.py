"""Documents → token ids with the places where sentences end, without encoding sentence by sentence.

Encoding whole documents is up to twice as fast as encoding their sentences, and gives the same ids; what it does not
say is where a sentence ends among them. That follows from counting: BERT's splitting makes of every word one token that
does not continue a word, so the words before a boundary, counted on the characters, tell its token; the tokens of
byte-level BPE hold all bytes of the text, so the bytes before it do. Every document is proved by its total: where the
count differs (a script this module counts otherwise than the tokenizer, a tokenizer of another form), its sentences are
encoded one by one, and where even their ids are not the document's, it counts as one sentence, to be cut at words.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data_prep import sentences
from data_prep.engines import CheckedEncoder
from data_prep.sentences import Located
from data_prep.token_batch import TokenBatch
from data_prep.tokenizer import Encoded, Tokenizer

Places = NDArray[np.int64]
_CODE_POINTS = 0x110000


class Measure(Protocol):
    """Something that text and tokens have in common and that can be counted in both."""

    weights: NDArray[np.uint16]  # by token id: how much of it the token holds

    def count(self, located: Located) -> tuple[Places, NDArray[np.bool_]]:
        """How much of it a text holds before the end of each sentence `[s]`, and which texts can be counted `[t]`."""


class Aligner:
    """For one tokenizer."""

    def __init__(self, made: Tokenizer) -> None:
        self._measure = _measure(made)

    def batch(self, texts: Sequence[str], keys: NDArray[np.uint64], encoder: CheckedEncoder) -> TokenBatch:
        """The documents as a packer wants them; `keys` are their content keys. Raises as `CheckedEncoder.encode`."""
        encoded = encoder.encode(texts, keys)
        encoded = Encoded(encoded.ids, np.array(encoded.ends, dtype=np.int64))
        located = sentences.locate(texts)
        places, proved = self._places(located, encoded)
        for text in np.flatnonzero(~proved).tolist():
            _one_by_one(text, located, encoded, encoder, places)
        # a text of blanks alone has no sentences, but of byte-level BPE some tokens: they are one
        document_ends, token_ends = located.document_ends, encoded.ends
        blank = np.diff(document_ends, prepend=0) == 0
        places = np.insert(places, document_ends[blank], token_ends[blank])
        return TokenBatch(encoded.ids, places, document_ends + np.cumsum(blank), keys).without_empty_sentences()

    def _places(self, located: Located, encoded: Encoded) -> tuple[Places, NDArray[np.bool_]]:
        """Where sentences end among the tokens `[s]`, and for which texts that is proved `[t]`."""
        from data_prep import text_kernels

        places = np.zeros(len(located.ends), dtype=np.int64)
        proved = np.zeros(len(located.text_ends), dtype=np.bool_)
        if self._measure is None:
            return places, proved
        counts, countable = self._measure.count(located)
        text_kernels.place_sentences(
            encoded.ids, encoded.ends, self._measure.weights, located.document_ends, counts, places, proved
        )
        return places, proved & countable


def _one_by_one(text: int, located: Located, encoded: Encoded, encoder: CheckedEncoder, places: Places) -> None:
    """Fill in where the sentences of a text end, by encoding each; all at its end when that gives other ids than it
    has."""
    first, last = (int(end) for end in np.append(0, located.document_ends)[text : text + 2])
    start, end = (int(end) for end in np.append(0, encoded.ends)[text : text + 2])
    if first == last:
        return
    one_by_one = encoder.encode(located.strings(text), np.ones(last - first, dtype=np.uint64))
    same = np.array_equal(one_by_one.ids, encoded.ids[start:end])
    places[first:last] = one_by_one.ends + start if same else end


def _measure(made: Tokenizer) -> Measure | None:
    """None for a tokenizer of another form than the two."""
    state = made.state()
    splitter, model, normalizer = state["pre_tokenizer"] or {}, state["model"], state["normalizer"]
    if any(not token["special"] for token in state["added_tokens"]):
        return None
    if splitter.get("type") == "BertPreTokenizer" and model["type"] == "WordPiece":
        return _Words(made)
    if splitter.get("type") == "ByteLevel" and not splitter["add_prefix_space"] and normalizer is None:
        return _Bytes(made)
    return None


class _Words:
    """Words, as BERT's normaliser and splitter make them: of each, one token does not continue it."""

    def __init__(self, made: Tokenizer) -> None:
        from data_prep import text_kernels as kinds

        self._words = made.words
        self.weights = (~made.continues).astype(np.uint16)
        self._classes = np.full(_CODE_POINTS, kinds.UNKNOWN, dtype=np.uint8)
        self._classes[0xD800:0xE000] = kinds.OTHER  # no text has them, and the tokenizer takes none

    def count(self, located: Located) -> tuple[Places, NDArray[np.bool_]]:
        from data_prep import text_kernels as kinds

        counts, seen = np.zeros(len(located.ends), dtype=np.int64), np.zeros(len(located.text_ends), dtype=np.uint8)
        text = 0
        while (text := kinds.count_words(*located, self._classes, self._steps(), counts, seen, text)) < len(seen):
            self._learn("".join(located.strings(text)))
        return counts, seen & kinds.OTHER == 0

    def _steps(self) -> Places:
        """By byte: the class of an ASCII character as the kernel adds them up."""
        from data_prep import text_kernels as kinds

        steps = np.full(256, kinds.ODD, dtype=np.int64)
        for kind, step in ((kinds.BLANK, 0), (kinds.LETTER, kinds.LETTER), (kinds.ALONE, kinds.MANY)):
            steps[:128][self._classes[:128] == kind] = step
        return steps

    def _learn(self, text: str) -> None:
        from data_prep import text_kernels as kinds

        for character in set(text):
            if self._classes[ord(character)] == kinds.UNKNOWN:
                self._classes[ord(character)] = self._class_of(character)

    def _class_of(self, character: str) -> int:
        """What becomes of the character between two letters, which tells all: BERT's rules look at no neighbour."""
        from data_prep import text_kernels as kinds

        words = self._words(f"a{character}a")
        if words == ["a", "a"]:
            return kinds.BLANK
        if words == ["aa"]:
            return kinds.NOTHING
        if len(words) == 1:
            return kinds.LETTER
        return kinds.ALONE if len(words) == 3 and len(words[1]) == 1 else kinds.OTHER


class _Bytes:
    """Bytes of UTF-8: the tokens of byte-level BPE spell one with each of their characters."""

    def __init__(self, made: Tokenizer) -> None:
        self.weights = made.lengths().astype(np.uint16)

    def count(self, located: Located) -> tuple[Places, NDArray[np.bool_]]:
        texts = len(located.text_ends)
        sizes = np.diff(located.document_ends, prepend=0)
        return located.ends - np.repeat(located.text_starts(), sizes), np.ones(texts, dtype=np.bool_)
