"""What `sentences` and `alignment` do character by character, as loops over texts in UTF-8.

The texts stand one after the other in one array of bytes, a NUL before, between and behind them. A NUL is neither
blank, mark, closer nor letter, so a loop over such characters, in either direction, ends at the end of its text; that
is why no place is ever outside of the array. The tables hold one entry for each code point.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels import kernel

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Table = NDArray[np.uint8]

# What a character is to the rules for sentences: bits of `flags`.
SPACE, NARROW_SPACE, IN_LINE, MARK, CLOSER, OPENER, BEGINS, FEED = (1 << bit for bit in range(8))
LONGEST = 6  # letters of an abbreviation
SLOTS = 1 << 10  # of the table of abbreviations, many more than there are
# What a character does in BERT's splitting: bits of `classes`.
BLANK, LETTER, ALONE, NOTHING, OTHER, UNKNOWN = 0, 1, 2, 4, 8, 16
# By byte, what it adds to the sum of a stretch: 0 for a blank, LETTER, MANY for what stands alone, ODD for all else.
STRETCH, MANY, ODD = 256, 1 << 16, 1 << 32
_DOT, _LINE_FEED, _A, _Z, _E, _G, _I = (ord(character) for character in ".\nAZegi")


@kernel
def _character(data: Bytes, place: int) -> tuple[Any, int]:
    """The code point of the character that begins at a place, and where the next one begins."""
    first = np.int64(data[place])
    if first < 0x80:
        return first, place + 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | data[place + 1] & 0x3F, place + 2
    if first < 0xF0:
        return (first & 0x0F) << 12 | (data[place + 1] & 0x3F) << 6 | data[place + 2] & 0x3F, place + 3
    high = (first & 0x07) << 18 | (data[place + 1] & 0x3F) << 12
    return high | (data[place + 2] & 0x3F) << 6 | data[place + 3] & 0x3F, place + 4


@kernel
def _previous(data: Bytes, place: int) -> tuple[Any, int]:
    """The code point of the character that ends at a place, and where it begins."""
    place -= 1
    while data[place] & 0xC0 == 0x80:
        place -= 1
    return _character(data, place)[0], place


@kernel
def _skip(data: Bytes, place: int, flags: Table, wanted: int) -> int:
    """The first place from `place` on with a character that is not `wanted`."""
    code, following = _character(data, place)
    while flags[code] & wanted:
        place = following
        code, following = _character(data, place)
    return place


@kernel
def find_sentences(
    data: Bytes,
    text_ends: Places,
    flags: Table,
    letters: Table,
    abbreviations: NDArray[np.uint64],
    ends: Places,
    document_ends: Places,
) -> int:
    """Where sentences end in `data`, and how many there are up to the end of each text; returns how many in all.

    Two of them end at least two bytes apart, so `ends` needs no more entries than half the bytes.
    """
    found, start = 0, 1
    for text in range(len(text_ends)):
        stop = text_ends[text]
        place = _skip(data, start, flags, SPACE)
        visible = place < stop
        while place < stop:
            for byte in data[place:stop]:  # an index would cost more: it might be one from the end
                if flags[byte] & (MARK | FEED):  # a byte of another character than ASCII has neither flag
                    break
                place += 1
            if place == stop:
                break
            if flags[data[place]] & FEED:
                end = place
                place += 1
                if data[_skip(data, place, flags, IN_LINE)] != _LINE_FEED:
                    continue
            else:
                end = place = _skip(data, _skip(data, place + 1, flags, MARK), flags, CLOSER)
                if not _ends_sentence(data, end, flags, letters, abbreviations):
                    continue
            # a run of blanks holds one boundary, the first; blanks at the end of a text belong to its last sentence
            place = _skip(data, end, flags, SPACE)
            if place < stop:
                ends[found] = end
                found += 1
        if visible:
            ends[found] = stop
            found += 1
        document_ends[text] = found
        start = stop + 1
    return found


@kernel
def _ends_sentence(data: Bytes, end: int, flags: Table, letters: Table, abbreviations: NDArray[np.uint64]) -> bool:
    """Whether a sentence ends at a place that marks precede."""
    code, behind = _character(data, end)
    if not flags[code] & SPACE:
        return False
    if code == _LINE_FEED and data[behind] == _LINE_FEED:
        return True
    place = _skip(data, _skip(data, behind, flags, NARROW_SPACE), flags, OPENER)
    if not flags[_character(data, place)[0]] & BEGINS:
        return False
    # only a dot right before the blank may belong to an abbreviation
    return data[end - 1] != _DOT or not _abbreviated(data, end - 1, letters, abbreviations)


@kernel
def _abbreviated(data: Bytes, dot: int, letters: Table, abbreviations: NDArray[np.uint64]) -> bool:
    """Whether a dot ends an abbreviation or an initial."""
    word, length, place = np.uint64(0), 0, dot  # the last letter in the lowest byte
    code, before = _previous(data, place)
    while letters[code]:
        if length == LONGEST:
            return False
        word |= np.uint64(letters[code]) << np.uint64(8 * length)
        length += 1
        place = before
        code, before = _previous(data, place)
    if length == 1:
        if _A <= data[place] <= _Z:
            return True
        if code == _DOT:
            code, before = _previous(data, before)
            if (letters[code] == _E and word == _G) or (letters[code] == _I and word == _E):  # "e.g", "i.e"
                return letters[_previous(data, before)[0]] == 0
    slot = hash_slot(word)
    while abbreviations[slot]:
        if abbreviations[slot] == word:
            return True
        slot = (slot + 1) % SLOTS
    return False


@kernel
def hash_slot(word: np.uint64) -> Any:
    """Where to look first for an abbreviation in the table of them; it is there or behind, before an empty slot."""
    return np.int64(word * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(54))


@kernel
def count_words(
    data: Bytes,
    text_ends: Places,
    sentence_ends: Places,
    document_ends: Places,
    classes: Table,
    steps: Places,
    counts: Places,
    seen: Table,
    text: int,
) -> int:
    """The words of a text before the end of each sentence, and the classes above `ALONE` that its characters have.

    Begins with `text` and goes on to the last, or the first with a character of an unknown class; returns which. Most
    stretches hold nothing but bytes with `steps` below `ODD`: the sum of these is letters, and characters that stand
    alone times `MANY`, without a branch; a letter that follows one begins no word. Other stretches are gone through
    once more, character by character, which a cut inside of one does not disturb.
    """
    sentence, start = 0, 1
    if text:
        sentence, start = document_ends[text - 1], text_ends[text - 1] + 1
    while text < len(text_ends):
        words, last, all_kinds = 0, BLANK, BLANK  # `last` matters as far as it is a letter
        while sentence < document_ends[text]:
            while start < sentence_ends[sentence]:
                stop = min(start + STRETCH, sentence_ends[sentence])
                total: Any = np.int64(0)
                pairs: Any = np.int64(0)
                before: Any = np.int64(last & LETTER)
                for byte in data[start:stop]:  # an index would cost as much again: it might be one from the end
                    step = steps[byte]
                    total += step
                    pairs += step & before
                    before = step
                if total < ODD:
                    words += total % MANY + total // MANY - pairs % MANY
                    last = before & LETTER
                    start = stop
                    continue
                for place in range(start, stop):
                    code: Any = np.int64(data[place])
                    if code >= 0x80:
                        if code < 0xC0:  # inside of a character
                            continue
                        code = _character(data, place)[0]
                    kind: Any = np.int64(classes[code])
                    if kind > ALONE:
                        all_kinds |= kind
                        if kind == NOTHING:
                            continue
                    words += (kind == ALONE) + (kind & ~last & LETTER)  # alone, or a letter that follows none
                    last = kind
                start = stop
            counts[sentence] = words
            sentence += 1
        if all_kinds & UNKNOWN:
            return text
        seen[text] = all_kinds
        start = text_ends[text] + 1
        text += 1
    return text


@kernel
def place_sentences(
    ids: NDArray[Any],
    token_ends: Places,
    weights: NDArray[np.uint16],
    document_ends: Places,
    counts: Places,
    places: Places,
    proved: NDArray[np.bool_],
) -> None:
    """Before which token each sentence of a document ends.

    The first token of any weight before which the weights of the document's tokens sum up to the count at the end of
    the sentence. Proved is a document where there is one for each of them and the sum of all is the last one's count.
    """
    sentence, token = 0, 0
    for document in range(len(token_ends)):
        first, last, total = sentence, document_ends[document], 0
        wanted = counts[sentence] if sentence < last else -1
        while token < token_ends[document]:
            weight: Any = np.int64(weights[ids[token]])
            while total == wanted and weight > 0:
                places[sentence] = token
                sentence += 1
                wanted = counts[sentence] if sentence < last else -1
            total += weight
            token += 1
        while sentence < last and counts[sentence] == total:
            places[sentence] = token
            sentence += 1
        proved[document] = sentence == last and (first == last or counts[last - 1] == total)
        sentence = last
