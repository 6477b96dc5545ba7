"""What the packers and the counts of rows do token by token, as loops: where fragments go, and what is written there.

Sentences and documents are given by their running ends among the tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels import kernel

Places = NDArray[np.int64]
Ids = NDArray[Any]

COINS = 64  # uniform numbers of a document that come from one key
_ROW_COINS = 4  # that one row takes at most
_GOLDEN, _M1, _M2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@kernel
def best_fit(
    ids: Ids,
    sentence_ends: Places,
    token_ends: Places,
    continues: NDArray[np.bool_],
    seq_len: int,
    shortest_filling: int,
    shortest_fragment: int,
    limit: int,
    n_open: int,
    rooms: Places,
    oldest: Places,
    younger: Places,
    ends: Places,
    heads: Places,
    closed: Places,
) -> tuple[int, int, int]:
    """Where each fragment ends among the tokens and where its first place is, counted over the slots of all rows, and
    the slots of rows in the order of closing. Returns how many of each, and of slots; -1 when the arrays are too
    short for them.

    A row has a slot, an older one a lower; `rooms` says how many places are free in each, at first of the `n_open`
    rows that are open, then of all, none in the closed ones. Rows with the same room are a list that begins with the
    `oldest[room]`, each followed by the next `younger[slot]`; -1 ends it.
    """
    oldest[:] = -1
    for slot in range(n_open):
        _open(oldest, younger, rooms, slot)
    slots, n_closed, fragments, start, sentence = n_open, 0, 0, 0, 0
    for stop in token_ends:
        while start < stop:
            if slots == len(rooms) or fragments == len(ends):
                return -1, 0, 0
            end = stop
            if stop - start > seq_len - 2:
                while sentence_ends[sentence] <= start:
                    sentence += 1
                end = _cut(ids, sentence_ends, sentence, start, seq_len - 2, continues, oldest, shortest_filling)
            size = end - start + 2
            room = size
            while room < seq_len and oldest[room] < 0:
                room += 1
            slot = oldest[room] if room < seq_len else -1
            if slot >= 0:
                oldest[room] = younger[slot]
            else:
                if n_open == limit:  # the fullest goes
                    room = shortest_fragment
                    while oldest[room] < 0:
                        room += 1
                    closed[n_closed] = oldest[room]
                    rooms[oldest[room]] = 0
                    oldest[room] = younger[oldest[room]]
                    n_closed += 1
                    n_open -= 1
                slot = slots
                rooms[slot] = seq_len
                slots += 1
                n_open += 1
            heads[fragments] = (slot + 1) * seq_len - rooms[slot]
            ends[fragments] = end
            fragments += 1
            rooms[slot] -= size
            if rooms[slot] < shortest_fragment:
                closed[n_closed] = slot
                rooms[slot] = 0
                n_closed += 1
                n_open -= 1
            else:
                _open(oldest, younger, rooms, slot)
            start = end
    return fragments, n_closed, slots


@kernel
def _open(oldest: Places, younger: Places, rooms: Places, slot: int) -> None:
    """Put a row among those with the same room."""
    room = rooms[slot]
    following, before = oldest[room], np.int64(-1)
    while 0 <= following < slot:
        following, before = younger[following], following
    younger[slot] = following
    if before < 0:
        oldest[room] = slot
    else:
        younger[before] = slot


@kernel
def _cut(
    ids: Ids,
    sentence_ends: Places,
    sentence: int,
    start: int,
    longest: int,
    continues: NDArray[np.bool_],
    oldest: Places,
    shortest_filling: int,
) -> int:
    """Where the next fragment of a document ends that is too long for one; `sentence` is the first to end behind start.

    After the last whole sentence that fits a row, or after an earlier one if the fragment then fills an open row; a
    sentence longer than a row before its last word that begins up to there, or inside of a word that is longer too.
    """
    fitting = filling = 0
    while sentence_ends[sentence] - start <= longest:
        fitting = sentence_ends[sentence] - start
        if fitting >= shortest_filling and oldest[fitting + 2] >= 0:
            filling = fitting
        sentence += 1
    if fitting:
        return start + (filling if filling else fitting)
    for place in range(start + longest, start, -1):
        if not continues[ids[place]]:
            return place
    return start + longest


@kernel
def write_fragments(ids: Ids, ends: Places, heads: Places, cls: int, sep: int, flat: Ids) -> None:
    """Each fragment's tokens, which begin where those of the one before it end, between `cls` and `sep`."""
    start = 0
    for fragment in range(len(ends)):
        place = heads[fragment]
        flat[place] = cls
        for token in range(start, ends[fragment]):
            place += 1
            flat[place] = ids[token]
        flat[place + 1] = sep
        start = ends[fragment]


@kernel
def _coin(block_keys: NDArray[np.uint64], document: int, drawn: int) -> float:
    """The uniform number of a document that comes after so many: what `keyed.uniforms` gives for its block."""
    block, column = drawn // COINS, drawn % COINS
    base = _mix((np.uint64(document) + np.uint64(1)) * _GOLDEN ^ block_keys[block])
    return np.float64(_mix(base + np.uint64(column + 1) * _GOLDEN) >> np.uint64(11)) * 2.0**-53


@kernel
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


@kernel
def _reaching(ends: Places, place: int, first: int, last: int) -> int:
    """The first of `ends[first:last]` at `place` or behind; `last` without one."""
    while first < last and ends[first] < place:
        first += 1
    return first


@kernel
def plan_segments(
    ends: Places,
    document_ends: Places,
    documents: Places,
    block_keys: NDArray[np.uint64],
    seq_len: int,
    separators: int,
    single: float,
    short: float,
    shortest: int,
    discard: bool,
    rows: NDArray[np.int64],
) -> int:
    """Fills in (start, end of A, end of B) of each row; how many, or -1 when there are too few keys to draw from."""
    overhead = 2 + separators  # cls, and the separators after A and B
    found = first = start = 0
    for document in range(len(document_ends)):
        last, target, drawn = document_ends[document], seq_len, 0
        number = documents[document]
        while first < last:
            if drawn + _ROW_COINS > COINS * len(block_keys):
                return -1
            # the sentence that reaches the target is the last one gathered; the document's last one reaches any
            reached = _reaching(ends, start + target, first, last)
            gathered = min(reached + 1, last)
            first_target = (target - overhead) // 2
            if _coin(block_keys, number, drawn) < single:
                first_target = seq_len * 1000
            drawn += 1
            # A takes what stays below its target, then, half of the time or when it is empty, one sentence more
            in_a = _reaching(ends, start + first_target, first, gathered)
            if in_a == first:
                in_a += 1
            elif in_a < gathered:
                in_a += _coin(block_keys, number, drawn) < 0.5
                drawn += 1
            a_end = min(ends[in_a - 1], start + seq_len - 2)
            b_end = min(ends[gathered - 1], a_end + max(0, seq_len - (a_end - start) - overhead))
            rows[found, 0], rows[found, 1], rows[found, 2] = start, a_end, b_end
            found += 1
            start = ends[gathered - 1] if discard else b_end
            # what is carried over counts as one sentence, which ends where the last one gathered does
            first = gathered if start == ends[gathered - 1] else gathered - 1
            if reached < last:
                target = seq_len
                if _coin(block_keys, number, drawn) < short:
                    target = shortest + int(_coin(block_keys, number, drawn + 1) * (seq_len - shortest + 1))
                    drawn += 1
                drawn += 1
    return found


@kernel
def write_segments(ids: Ids, rows: NDArray[np.int64], separators: int, cls: int, sep: int, pad: int, out: Ids) -> None:
    """Rows `cls A sep (B sep)`, with `separators` between A and B, and padding."""
    for row in range(len(rows)):
        start, a_end, b_end = rows[row]
        out[row, 0] = cls
        place = 1
        for token in range(start, a_end):
            out[row, place] = ids[token]
            place += 1
        if b_end > a_end:
            for _ in range(separators):
                out[row, place] = sep
                place += 1
            for token in range(a_end, b_end):
                out[row, place] = ids[token]
                place += 1
        out[row, place] = sep
        out[row, place + 1 :] = pad


@kernel
def count_rows(rows: Ids, cls: int, sep: int, pad: int, unk: int, totals: Places, lengths: Places) -> None:
    """Adds to `totals` (fragments, sum of their lengths, sum of the squares, rows with a pair, unknown tokens), and to
    `lengths` one at the real tokens of each row.

    A fragment ends where the next one begins; one with two separators is a pair, and two of them side by side are one.
    """
    for row in rows:
        begin, real, separators, pairs = -1, 0, 0, 0
        last = pad
        for column in range(len(row)):
            token = row[column]
            if token == cls:
                if begin >= 0:
                    totals[1] += column - begin
                    totals[2] += (column - begin) ** 2
                totals[0] += 1
                begin, separators = column, 0
            elif token == sep:
                separators += begin >= 0 and last != sep
                pairs += separators > 1
            totals[4] += token == unk
            real += token != pad
            last = token
        if begin >= 0:
            totals[1] += real - begin
            totals[2] += (real - begin) ** 2
        totals[3] += pairs > 0
        lengths[real] += 1
