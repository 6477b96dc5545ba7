"""What `clean` and `dedup` do byte by byte, as loops over the UTF-8 of many documents at once.

Texts come as their concatenation, padded by two bytes, and the running end of each, so that a pass costs a nanosecond a
byte or less and next to nothing a text; no loop looks further than two bytes past the end of a text. What the answers
mean is said by `clean` and `dedup`, which also hold the slow ways that these loops agree with.
"""

import itertools
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels import kernel

CONTROL, BLANK, WIDE, EDGE = 1, 2, 4, 8  # bits of `oddities`

_PADDING = b"xx"  # so that a character of three bytes can be looked at from any byte
_ONE_BYTE = np.uint64(1)  # indices without a sign cost no check for negative ones
_PLANES = 0x40000  # the four planes that hold letters
_TABLE = 0x20000  # the first two planes: all but rare ideographs


def joined(texts: Sequence[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    """The texts and their running ends."""
    return b"".join((*texts, _PADDING)), np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))


def oddities(texts: Sequence[bytes]) -> NDArray[np.uint8]:
    """`[n]`: what each text may hold, and certainly does not where the bit is not set: control characters; ASCII blanks
    other than single " " and "\\n" and one empty line; blanks and line ends beyond ASCII; one of the two at an end."""
    data, ends = joined(texts)
    found = np.empty(len(texts), dtype=np.uint8)
    _oddities(np.frombuffer(data, dtype=np.uint8), ends, found)
    return found


def count_letters(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`[n]`: the letters of each text, and its characters other than blanks, as `isalpha` and `isspace` have it."""
    data, ends = joined(texts)
    letters, visible = np.empty(len(texts), dtype=np.int64), np.empty(len(texts), dtype=np.int64)
    _count_letters(np.frombuffer(data, dtype=np.uint8), ends, *character_kinds(), letters, visible)
    return letters, visible


def normal_forms(texts: Sequence[bytes]) -> tuple[list[Any], NDArray[np.bool_]]:
    """The bytes of each text without ASCII blanks and control characters, with ASCII letters in lower case, and `[n]`:
    whether NFKC may change the text."""
    data, ends = joined(texts)
    out, out_ends = np.empty(len(data), dtype=np.uint8), np.empty(len(texts), dtype=np.int64)
    unstable = np.empty(len(texts), dtype=np.bool_)
    _normal_forms(np.frombuffer(data, dtype=np.uint8), ends, _ASCII_FORM, stable(), out, out_ends, unstable)
    view, bounds = out.data, [0, *out_ends.tolist()]
    return [view[start:end] for start, end in itertools.pairwise(bounds)], unstable


@cache
def stable() -> NDArray[np.bool_]:
    """`[_TABLE]`: whether NFKC leaves a character alone whatever stands beside it: it is normal, and no mark or Hangul
    jamo, which join with the character before them."""
    characters = map(chr, range(_TABLE))
    table = np.fromiter(
        (unicodedata.is_normalized("NFKC", c) and unicodedata.category(c)[0] != "M" for c in characters), np.bool_
    )
    table[0x1100:0x1200] = False
    return table


@cache
def character_kinds() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """`[_PLANES]`: whether a character is a letter; whether it is a blank. Beyond the table there are neither."""
    characters = list(map(chr, range(_PLANES)))
    return np.fromiter(map(str.isalpha, characters), np.bool_), np.fromiter(map(str.isspace, characters), np.bool_)


# What becomes of a byte; 0: left out. All bytes beyond ASCII stay.
_ASCII_FORM = np.frombuffer(
    bytes(0 if code <= 0x20 or code == 0x7F else code for code in bytes(range(256)).lower()), dtype=np.uint8
)


@kernel
def _code(data: Any, at: Any) -> Any:
    """The code point of the character of two to four bytes at `at`."""
    first, second = np.uint64(data[at]), np.uint64(data[at + _ONE_BYTE] & 0x3F)
    if first < 0xE0:
        return (first & np.uint64(0x1F)) << np.uint64(6) | second
    third = np.uint64(data[at + np.uint64(2)] & 0x3F)
    if first < 0xF0:
        return (first & np.uint64(0x0F)) << np.uint64(12) | second << np.uint64(6) | third
    fourth = np.uint64(data[at + np.uint64(3)] & 0x3F)
    return (first & np.uint64(7)) << np.uint64(18) | second << np.uint64(12) | third << np.uint64(6) | fourth


@kernel
def _oddities(data: Any, ends: Any, found: Any) -> None:
    """Nothing but comparisons of neighbours, which a processor makes for 32 places at once; each loop is as short as
    that allows. A character taken for one that ends in the next text costs a closer look, no more."""
    start = 0
    for text in range(len(ends)):
        end = ends[text]
        firsts, seconds, thirds = data[start:end], data[start + 1 : end + 1], data[start + 2 : end + 2]
        control = blank = wide = edge = False
        for place in range(end - start):
            a, b, c = firsts[place], seconds[place], thirds[place]
            control |= (a < 0x09) | ((a >= 0x0E) & (a < 0x20)) | (a == 0x7F)
            control |= ((a == 0xC2) & (b < 0xA0)) | ((a == 0xEF) & (b == 0xBB) & (c == 0xBF))
        for place in range(end - start):
            a, b, c = firsts[place], seconds[place], thirds[place]
            blank |= (a == 0x09) | ((a >= 0x0B) & (a < 0x0E))
            blank |= (a == 0x20) & ((b == 0x20) | (b == 0x0A))
            blank |= (a == 0x0A) & ((b == 0x20) | ((b == 0x0A) & (c == 0x0A)))
        for place in range(end - start):
            a, b, c = firsts[place], seconds[place], thirds[place]
            wide |= (a == 0xC2) & ((b == 0x85) | (b == 0xA0))
            wide |= (a == 0xE1) & (b == 0x9A) & (c == 0x80)
            wide |= (a == 0xE2) & (b == 0x80) & ((c <= 0x8A) | (c == 0xA8) | (c == 0xA9) | (c == 0xAF))
            wide |= (a == 0xE2) & (b == 0x81) & (c == 0x9F)
            wide |= (a == 0xE3) & (b == 0x80) & (c == 0x80)
        if start < end:
            first, last = data[start], data[end - 1]
            edge = first == 0x20 or first == 0x0A or last == 0x20 or last == 0x0A
        found[text] = control * CONTROL | blank * BLANK | wide * WIDE | edge * EDGE
        start = end


@kernel
def _count_letters(data: Any, ends: Any, is_letter: Any, is_blank: Any, letters: Any, visible: Any) -> None:
    """ASCII at the speed of memory; the characters beyond it one by one, where there are any."""
    start = 0
    for text in range(len(ends)):
        end = ends[text]
        found = blanks = beyond = 0
        for byte in data[start:end]:
            found += ((byte | 0x20) >= 0x61) & ((byte | 0x20) <= 0x7A)
            blanks += (byte == 0x20) | ((byte >= 0x09) & (byte <= 0x0D)) | ((byte >= 0x1C) & (byte <= 0x1F))
            beyond += byte >= 0x80
        shown = end - start - blanks - beyond
        at = np.uint64(start)
        while beyond > 0:  # bytes of such characters are left
            if data[at] >= 0xC2:
                code = _code(data, at)
                inside = code < len(is_letter)
                found += inside and is_letter[code]
                shown += not (inside and is_blank[code])
            beyond -= data[at] >= 0x80
            at += _ONE_BYTE
        letters[text], visible[text] = found, shown
        start = end


@kernel
def _normal_forms(data: Any, ends: Any, form: Any, is_stable: Any, out: Any, out_ends: Any, unstable: Any) -> None:
    """A byte that is left out is overwritten by the next: there is no branch on it."""
    at = to = np.uint64(0)
    for text in range(len(ends)):
        end = np.uint64(ends[text])
        may_change = False
        while at < end:
            byte = data[at]
            kept = form[byte]
            out[to] = kept
            to += np.uint64(kept != 0)
            if byte >= 0xC2:  # the first byte of a character
                code = _code(data, at)
                may_change |= code >= len(is_stable) or not is_stable[code]
            at += _ONE_BYTE
        out_ends[text] = to
        unstable[text] = may_change
