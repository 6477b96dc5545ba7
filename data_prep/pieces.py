"""Cut a very long text where cutting cannot change its token ids, so that encoding it takes a bounded memory.

`tokenizers` keeps some 450 bytes a token while it encodes, and a "sentence" of a text without full stops may be tens
of megabytes. The ids of the pieces, one after the other, are the ids of the text. Only the two forms for which this is
so by construction are cut: BERT's splitting, and GPT-2's byte-level splitting. A text stays whole where it offers no
such place (a single word of megabytes in byte-level BPE).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LONG = 100_000  # characters; a shorter text is never cut

# Characters that are no white space for anybody: Python and the tokenizers do not agree on all the others.
_VISIBLE = r"(?=[!-~]|\w)"


@dataclass(frozen=True, slots=True)
class Cutter:
    """Where a text may be cut, and how many ASCII letters and digits in a row are as good as any more."""

    place: re.Pattern[str]  # the first character of the next piece
    longest_run: int | None = None

    def cut(self, text: str, length: int = LONG) -> Iterator[str]:
        """Pieces of at least `length` (one or more) characters, but for the last."""
        if len(text) > length and self.longest_run is not None:
            text = re.sub(rf"([A-Za-z0-9]{{{self.longest_run}}})[A-Za-z0-9]+", r"\1", text)
        start = 0
        while len(text) - start > length and (place := self.place.search(text, start + length)) is not None:
            yield text[start : place.start()]
            start = place.start()
        yield text[start:]


def cutter(state: dict[str, Any]) -> Cutter | None:
    """The cutter for a tokenizer.json; None when its form is not one of the two."""
    if any(not token["special"] for token in state["added_tokens"]):
        return None  # these match across blanks
    normalizer, splitter, model = state["normalizer"], state["pre_tokenizer"] or {}, state["model"]
    if splitter.get("type") == "BertPreTokenizer" and model["type"] == "WordPiece":
        if normalizer is not None and normalizer["type"] != "BertNormalizer":
            return None
        # A blank always stands between two words; an ideograph is a word of its own once the normaliser has seen it.
        # Neither is touched by what precedes it: accents are taken apart and dropped after their own letter.
        ideographs = r"\u4e00-\u9fff" if normalizer is not None and normalizer["handle_chinese_chars"] else ""
        # A longer word is [UNK], so one character more than that says as much as a million.
        return Cutter(re.compile(rf"[ \t\n\r{ideographs}]"), model["max_input_chars_per_word"] + 1)
    if splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True) and normalizer is None:
        # The pattern's `\s+(?!\S)` leaves the last of several blanks to what follows: as ` ?\p{L}+` and the like take
        # it when it is a space, and as a piece by itself when it is not. So a piece always begins with it.
        blanks = " " if splitter["add_prefix_space"] else r" \t\n\r"  # a line feed would be given a space before it
        return Cutter(re.compile(rf"[{blanks}]{_VISIBLE}"))
    return None
