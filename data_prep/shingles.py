"""Words and word n-grams of many texts at once, as 64-bit hashes.

A word is a maximal run of ASCII letters, ASCII digits and other non-ASCII characters of the lower-cased text. All else
separates words and is otherwise ignored: ASCII punctuation and white space, and beyond ASCII the signs U+0080–U+00BF,
the punctuation and symbols U+2000–U+2BFF, the CJK punctuation U+3000–U+303F and its full-width fellows U+FF00–U+FF0F
and U+FF1A–U+FF1F, and the byte order mark. So "it 's" and "It’s" are both the words it, s, and line breaks mean
nothing. In scripts written without blanks a clause counts as one word.

Hashes are functions of the words alone, never of their place or of what else is in the batch. Two different words or
n-grams share one with a chance of about 2⁻⁶⁴ a pair; nothing here guards against texts built to collide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep import keyed

Hashes = NDArray[np.uint64]

_BLOCK = 1 << 16  # n-grams, and
_BLOCK_BYTES = 1 << 20  # bytes of words that are hashed at a time, to stay in the cache
_LONG = 32  # bytes; longer words are hashed one by one
_PAD = bytes(_LONG)  # a word's 8-byte pieces may be read past its end
_FACTOR = int(keyed.key("n-gram")) | 1
_WORD = np.zeros(256, dtype=np.bool_)
_WORD[[*b"0123456789abcdefghijklmnopqrstuvwxyz", *range(0x80, 0x100)]] = True
_KEPT = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)  # the first n bytes of a little-endian word


@dataclass(frozen=True, slots=True)
class Words:
    """The hashed words of texts, one after another."""

    hashes: Hashes  # [n]
    ends: NDArray[np.int64]  # [texts], running end of each text's words

    @property
    def starts(self) -> NDArray[np.int64]:
        """`[texts]`: where each text's words begin."""
        return starts(self.ends)


def starts(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The beginnings that belong to running ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])[: len(ends)]


def words(texts: Sequence[str]) -> Words:
    """The words of all texts."""
    data, text_stops = _encoded(texts)
    hashes = [np.empty(0, dtype=np.uint64)]
    ends = np.zeros(len(texts), dtype=np.int64)
    for first, stop in _bounds(data):
        hashes.append(_word_hashes(data, first, stop - first))
        ends += np.searchsorted(first, text_stops)
    return Words(np.concatenate(hashes), ends)


def spans(text: str) -> NDArray[np.int64]:
    """`[n, 2]`: first character and stop of every word of one text, in the order of `words`."""
    data, _ = _encoded([text])
    found = [np.empty((0, 2), dtype=np.int64)]
    characters = seen = 0
    for first, stop in _bounds(data):
        last = int(stop[-1]) if len(stop) else seen
        counts = np.cumsum((data[seen:last] & 0xC0) != 0x80)  # continuation bytes begin no character
        found.append(characters + np.stack([counts[first - seen] - 1, counts[stop - seen - 1]], axis=1))
        characters, seen = characters + int(counts[-1] if len(counts) else 0), last
    return np.concatenate(found)


def ngrams(hashes: Hashes, n: int) -> Hashes:
    """`[len - n + 1]`: the hash of every `n` consecutive words, whatever texts they belong to; mixed, so uniform."""
    result = np.empty(max(len(hashes) - n + 1, 0), dtype=np.uint64)
    for start in range(0, len(result), _BLOCK):
        block = hashes[start : start + _BLOCK + n - 1]
        result[start : start + _BLOCK] = keyed.mix(_sums(block, n))
    return result


def shingles(batch: Words, n: int) -> Hashes:
    """One n-gram for every word, text by text as in `batch.ends`: the set of them is the set of the text's n-grams.

    The last `n - 1` entries of a text repeat its last n-gram. A text of fewer words has one shingle, all its words.
    """
    result = np.empty(len(batch.hashes), dtype=np.uint64)
    whole = ngrams(batch.hashes, n)
    result[: len(whole)] = whole
    begins = batch.starts
    counts = batch.ends - begins
    ends = batch.ends[counts >= n]
    for back in range(1, n):
        result[ends - back] = result[ends - n]
    for count in range(1, n):
        begin = begins[counts == count]
        places = begin[:, None] + np.arange(count)
        factors = np.array([pow(_FACTOR, power, 1 << 64) for power in range(count)], dtype=np.uint64)
        result[places] = keyed.mix((batch.hashes[places] * factors).sum(axis=1, dtype=np.uint64))[:, None]
    return result


def shingle_sets(texts: Sequence[str], n: int) -> list[Hashes]:
    """The shingles of each text, sorted, each once; empty for a text without words."""
    batch = words(texts)
    values = shingles(batch, n)
    return [np.unique(values[start:end]) for start, end in zip(batch.starts, batch.ends, strict=True)]


def jaccard(a: Hashes, b: Hashes) -> float:
    """|a ∩ b| / |a ∪ b| of two sorted sets, correctly rounded; 0 where both are empty."""
    small, large = sorted((a, b), key=len)
    if len(small) == 0:
        return 0.0
    places = np.minimum(np.searchsorted(large, small), len(large) - 1)
    shared = int(np.count_nonzero(large[places] == small))
    return shared / (len(a) + len(b) - shared)


def _encoded(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The lower-cased texts as bytes, each followed by a separator, and where each ends; padded.

    Lower case has as many characters as before: U+0130 is the only one that would become two.
    """
    encoded = [text.replace("\u0130", "i").lower().encode("utf-8", "replace") for text in texts]
    stops = np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) + 1)
    return np.frombuffer(b"\n".join(encoded) + b"\n" + _PAD, dtype=np.uint8), stops


def _bounds(data: NDArray[np.uint8]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """First byte and stop of every word, some `_BLOCK_BYTES` at a time."""
    start, length = 0, len(data) - _LONG
    while start < length:
        stop = min(start + _BLOCK_BYTES, length)
        while _WORD[data[stop - 1]]:  # no word is cut: the byte before the pad separates
            stop += 1
        first, end = _bounds_in_block(data[start:stop])
        yield first + start, end + start
        start = stop


def _bounds_in_block(data: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First byte and stop of every word; the last byte separates."""
    inside = _WORD.take(data)
    _clear(inside, np.flatnonzero(data == 0xC2), 2)  # U+0080–U+00BF
    lead = np.flatnonzero(data == 0xE2)
    _clear(inside, lead[data[lead + 1] < 0xB0], 3)  # U+2000–U+2BFF
    lead = np.flatnonzero(data == 0xE3)
    _clear(inside, lead[data[lead + 1] == 0x80], 3)  # U+3000–U+303F
    lead = np.flatnonzero(data == 0xEF)
    second, third = data[lead + 1], data[lead + 2]
    full_width = (second == 0xBC) & ((third < 0x90) | (third >= 0x9A) & (third < 0xA0))
    _clear(inside, lead[full_width | (second == 0xBB) & (third == 0xBF)], 3)  # …, U+FEFF
    changes = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    if inside[0]:
        changes = np.concatenate([np.zeros(1, dtype=np.int64), changes])
    return changes[::2], changes[1::2]


def _clear(inside: NDArray[np.bool_], lead: NDArray[np.int64], length: int) -> None:
    """Make separators of the characters of `length` bytes that begin at `lead`."""
    for offset in range(length):
        inside[lead + offset] = False


def _word_hashes(data: NDArray[np.uint8], first: NDArray[np.int64], length: NDArray[np.int64]) -> Hashes:
    """The hash of each word: its 8-byte pieces, padded with zeros, mixed one after another."""
    pieces: Hashes = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))  # at every byte
    hashes = keyed.mix(pieces[first] & _KEPT[np.minimum(length, 8)])
    for offset in range(8, _LONG, 8):
        longer = np.flatnonzero(length > offset)
        piece = pieces[first[longer] + offset] & _KEPT[np.minimum(length[longer] - offset, 8)]
        hashes[longer] = keyed.mix(hashes[longer] ^ piece)
    for word in np.flatnonzero(length > _LONG).tolist():
        hashes[word] = xxhash.xxh3_64_intdigest(data[first[word] : first[word] + length[word]].data)
    return hashes


def _sums(hashes: Hashes, n: int) -> Hashes:
    """`Σ hashes[i + k] · factorᵏ` over k < n for every i, by doubling the length of the sums. At least n hashes."""
    length = len(hashes) - n + 1
    total = np.zeros(length, dtype=np.uint64)
    power, size, done = hashes, 1, 0  # `power` holds the sums over `size` words
    while True:
        if n & size:
            total += power[done : done + length] * _power(done)
            done += size
        if done == n:
            return total
        power = power[:-size] + power[size:] * _power(size)
        size *= 2


def _power(exponent: int) -> np.uint64:
    return np.uint64(pow(_FACTOR, exponent, 1 << 64))
