"""Fast token engines, trusted only as far as they are checked: the ids are those of `tokenizers`, or not theirs.

`nanotoken` (WordPiece) and `gigatoken` (byte-level BPE) are young packages that encode some fifty times faster. One is
used when it gave the reference's ids for real documents and for `ADVERSARIAL` (`gate`), and while it does so for a
keyed sample of the documents (`CheckedEncoder`); an `EngineMismatch` asks the caller to do its unit again with the
reference. So no output ever depends on the engine. An engine runs on the calling thread, and what it remembers of
words is bounded. Text that spells a special token stays text: an engine is built without any.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from data_prep import tokenizer
from data_prep.tokenizer import Encoded, Tokenizer

PACKAGES = {"WordPiece": "nanotoken", "BPE": "gigatoken"}
SAMPLE_BITS = 10  # one document of 2 ** 10 is encoded a second time, by the reference
SAMPLE_CHARACTERS = 20_000  # of such a document, about: a book costs no more than its first chapter
GATE_CHARACTERS = 10_000  # of a document shown to the gate
# nanotoken stops learning once it knows so many words, and forgets none: it is made to, after so many characters
WORDS, FORGET_AFTER = 1 << 17, 32_000_000
# gigatoken's memory of words has no such bound: it is built anew once the process has grown by so much since
LOOK_AFTER, GROWTH = 8_000_000, 128_000_000


class EngineMismatch(Exception):
    """A fast engine gave other ids than the reference, or failed: what it was to encode is to be encoded again."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One text on which an engine and the reference differ; `got` is None when the engine failed."""

    text: str
    expected: list[int]
    got: list[int] | None

    def __str__(self) -> str:
        got = "nothing" if self.got is None else f"{len(self.got)} ids"
        return f"other ids than tokenizers ({got} instead of {len(self.expected)}) for the text {self.text[:60]!r}"


class Engine(ABC):
    """An engine built for one tokenizer. Not for two threads at once."""

    name: str

    def __init__(self, state: str, reference: Tokenizer) -> None:
        self.version = metadata.version(self.name)
        self._state, self._vocab_size, self._dtype = state, reference.vocab_size, reference.dtype
        self._seen = 0  # characters since the last look at its memory
        self._build()

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        """As `Tokenizer.encode_flat`. EngineMismatch when the engine fails or gives what cannot be an id."""
        if not texts:
            return Encoded(np.empty(0, dtype=self._dtype), np.empty(0, dtype=np.int64))
        self._seen += sum(map(len, texts))
        self._bound_memory()
        try:
            ids, ends = self._encode(list(texts))
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            raise EngineMismatch(f"{self.name} {self.version} failed: {error}") from None
        if len(ends) != len(texts) or (ids.size and int(ids.max()) >= self._vocab_size):
            raise EngineMismatch(f"{self.name} {self.version} gave ids that are none of this vocabulary")
        return Encoded(ids.astype(self._dtype), ends)

    @abstractmethod
    def _build(self) -> None:
        """Make the engine anew, with nothing remembered."""

    @abstractmethod
    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all texts, and where each text's end."""

    @abstractmethod
    def _bound_memory(self) -> None:
        """Forget what was remembered once it is much."""


class Nanotoken(Engine):
    """WordPiece."""

    name = "nanotoken"

    def _build(self) -> None:
        import nanotoken

        nanotoken.set_cache_entries(WORDS)
        self._engine = nanotoken.WordPieceTokenizer.from_json(self._state)

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        ids, offsets = self._engine.encode_batch(texts, add_special_tokens=False, parallel=False)
        return ids, offsets[1:]

    def _bound_memory(self) -> None:
        if self._seen > FORGET_AFTER:
            self._engine.clear_cache()
            self._seen = 0


class Gigatoken(Engine):
    """Byte-level BPE."""

    name = "gigatoken"

    def _build(self) -> None:
        import gigatoken

        self._engine = gigatoken.Tokenizer.from_json(self._state).backend
        self._resident = _resident_bytes()

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        ragged = self._engine.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(ragged.offsets.data)
        return np.asarray(ragged.content.data)[offsets[0] : offsets[-1]], offsets[1:] - offsets[0]

    def _bound_memory(self) -> None:
        if self._seen > LOOK_AFTER:
            self._seen = 0
            if _resident_bytes() - self._resident > GROWTH:
                self._build()


ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Nanotoken, Gigatoken)}


def installed() -> dict[str, str | None]:
    """Versions of the engines' packages; None where one is absent."""
    return {name: _version(name) for name in sorted(ENGINES)}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fast_engine(reference: Tokenizer) -> Engine | str:
    """The engine for a tokenizer, or why there is none: package absent, form not supported, construction failed."""
    state = reference.state()
    model = state["model"]["type"]
    name = PACKAGES.get(model)
    if name is None:
        return f"there is no fast engine for {model} tokenizers"
    if any(not token["special"] for token in state["added_tokens"]):
        return f"{name} is not used for a tokenizer with added tokens that text can become"
    unsaid: dict[str, Any] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    bare = orjson.dumps(state | unsaid).decode()
    try:
        return ENGINES[name](bare, reference)
    except (ImportError, metadata.PackageNotFoundError):
        return f"{name} is not installed"
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        return f"{name} cannot read this tokenizer: {error}"


def check(engine: Engine, reference: Tokenizer, texts: Sequence[str]) -> Mismatch | None:
    """The first of `texts` and `ADVERSARIAL` whose ids differ; None when all are the same."""
    shown = [text[:GATE_CHARACTERS] for text in texts]
    for batch in (ADVERSARIAL, *(shown[i : i + 100] for i in range(0, len(shown), 100))):
        try:
            got = engine.encode_flat(batch)
        except EngineMismatch:
            return Mismatch(batch[0], reference.encode(batch[:1])[0], None)
        if (found := _first_difference(batch, reference.encode_flat(batch), got)) is not None:
            return found
    return None


def gate(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Whether the saved tokenizer's engine may be used, in JSON's types: what `checked_encoder` asks for."""
    reference = tokenizer.load(folder)
    engine = fast_engine(reference)
    verdict = {
        "tokenizer": tokenizer.fingerprint(folder),
        "documents": len(texts),
        "adversarial": len(ADVERSARIAL),
    }
    if isinstance(engine, str):
        return verdict | {"engine": None, "version": None, "accepted": False, "reason": engine}
    found = check(engine, reference, texts)
    reason = "" if found is None else f"{engine.name} {engine.version} gives {found}"
    return verdict | {
        "engine": engine.name, "version": engine.version, "accepted": found is None, "reason": reason
    }  # fmt: skip


class CheckedEncoder:
    """Encodes documents with an engine that is looked after, or with the reference when there is none."""

    def __init__(self, reference: Tokenizer, engine: Engine | None) -> None:
        self._reference, self._engine = reference, engine
        self.checked = 0  # documents encoded twice so far

    @property
    def engine(self) -> str:
        """What encodes: a name and a version."""
        if self._engine is None:
            return f"tokenizers {metadata.version('tokenizers')}"
        return f"{self._engine.name} {self._engine.version}"

    def encode(self, texts: Sequence[str], keys: NDArray[np.uint64]) -> Encoded:
        """Ids of documents; `keys` are their content keys.

        EngineMismatch when a sampled document's ids are not the reference's. Never when there is no engine.
        """
        if self._engine is None:
            return self._reference.encode_flat(texts)
        encoded = self._engine.encode_flat(texts)
        for document in np.flatnonzero(_sampled(keys)).tolist():
            start = int(encoded.ends[document - 1]) if document else 0
            self._check(texts[document], encoded.ids[start : encoded.ends[document]])
        return encoded

    def _check(self, text: str, ids: NDArray[Any]) -> None:
        beginning = self._reference.beginning(text, SAMPLE_CHARACTERS)
        expected = self._reference.encode_flat([beginning])
        shown = ids if beginning == text else ids[: len(expected.ids)]
        found = _first_difference([beginning], expected, Encoded(shown, np.array([len(shown)])))
        if found is not None:
            raise EngineMismatch(f"{self.engine} gives {found}")
        self.checked += 1


def checked_encoder(reference: Tokenizer, tokenizer_sha256: str, verdict: Mapping[str, Any]) -> CheckedEncoder:
    """The encoder for a tokenizer: with the engine when `gate` accepted this very one for this very tokenizer."""
    if not verdict["accepted"] or verdict["tokenizer"] != tokenizer_sha256:
        return CheckedEncoder(reference, None)
    engine = fast_engine(reference)
    if isinstance(engine, str) or (engine.name, engine.version) != (verdict["engine"], verdict["version"]):
        return CheckedEncoder(reference, None)
    return CheckedEncoder(reference, engine)


def _sampled(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """By document: whether it is in the sample. Mixed first, so that no other choice by the same key goes with it."""
    mixed: NDArray[np.uint64] = keys * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(64 - SAMPLE_BITS)) == 0


def _first_difference(texts: Sequence[str], expected: Encoded, got: Encoded) -> Mismatch | None:
    if np.array_equal(expected.ends, got.ends) and np.array_equal(expected.ids, got.ids):
        return None
    for text, one, other in zip(texts, _lists(expected), _lists(got), strict=True):
        if one != other:
            return Mismatch(text, one, other)
    raise AssertionError("arrays that differ, of texts that do not")


def _lists(encoded: Encoded) -> Iterator[list[int]]:
    start = 0
    for end in encoded.ends.tolist():
        yield encoded.ids[start:end].tolist()
        start = end


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * 4096


# Whatever has been known to set two tokenizers at odds. Fixed: an engine that passes today passes tomorrow.
ADVERSARIAL = (
    "",
    " ",
    "      ",
    "\t\n\r \n\n\t ",
    "\x00",
    "x\x00y\u200bz\ufeff end",
    "\ufeffA mark at the beginning",
    "broken \ufffd here \ufffd\ufffd",
    "soft\u00adhyphen, zero\u200cwidth\u200djoiners, word\u2060joiner",
    "\u200e left \u200f right \u202a embedded \u202c \u2066isolated\u2069",
    "control \x01\x02\x07\x08\x0b\x0c\x1b[0m\x1c\x1d\x1e\x1f\x7f end",
    "next\x85line, \x80\x9f C1",
    "a\u2028b\u2029c",
    "a\u00a0b\u2003c\u3000d\u202fe\u205ff\u1680g\u180eh",
    "one  two   three    four",
    "  leading and trailing  ",
    "\n\nParagraph\n\n\n another \n last\n",
    "tab\tseparated\t\tvalues\r\nand\rreturns\n\r",
    " \n \t \r\n x",
    "  'there",
    "'there 's 't 're 've 'm 'll 'd",
    "don't I'll we've they're I'm he'd it's DON'T I'LL O'Brien''s",
    "rock ’n’ roll, don’t, it’s",
    "0123456789 1,000,000.00 3.14e-10 ٣٤٥ ௧௨ ²³ ½ Ⅷ ①",
    "a1b2c3 x86_64 utf-8 C++17 #1 50% $5.00 €3 £4 ¥5",
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "é" * 100 + " " + "é" * 101,
    "e\u0301" * 50 + " " + "e\u0301" * 51,
    "x" * 20_000,
    "ab " * 5_000,
    "9" * 3_000,
    "!" * 3_000,
    " " * 3_000 + "x",
    "\n" * 1_000 + "x",
    "naïve café résumé Ångström façade",
    "nai\u0308ve cafe\u0301 re\u0301sume\u0301 A\u030angstro\u0308m",
    "İstanbul ıstanbul ISTANBUL",
    "Straße STRASSE ẞ ß ﬁ ﬂ ﬀ ǆ ŉ",
    "ΑΣ ΣΑΣ σας Ὀδυσσεύς ᾳ ΐ",
    "x\u0301\u0302\u0303 \u0301alone o\u0338\u0327 q\u0307\u0323 q\u0323\u0307",
    "\u0300\u0301\u0302",
    "Ж ё й И\u0306 Ї ґ",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "漢字abc漢字123漢",
    "\U00020000\U0002a6d6\U0002f800 \uf900\ufa0e \u3400 々〇〆",
    "한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8 각\u11a8",
    "カタカナ ｶﾀｶﾅ が か\u3099",
    "ไทยไม่มีช่องว่าง กำ กํา",
    "हिन्दी क्षत्रिय বাংলা தமிழ் తెలుగు",
    "שָׁלוֹם עולם",
    "السَّلَامُ عَلَيْكُمْ لا ﷺ ـــ",
    "ខ្មែរ မြန်မာ བོད་ཡིག ກຳ አማርኛ ᏣᎳᎩ",
    "🙂 👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪🇫🇷 ❤\ufe0f 1\ufe0f\u20e3 🏴\U000e0067\U000e0062\U000e007f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐍈 𐐀𐐨 𒀀",
    "private \ue000\uf8ff \U000f0000\U0010fffd, unassigned \u0378\U000e0fff, no character \ufdd0\uffff\U0010ffff",
    "[MASK]",
    "[CLS]text[SEP] [PAD][UNK] a[MASK]b [mask] [ MASK ]",
    "<mask> <s>text</s> <pad><unk> a<mask>b  <mask>  <MASK>",
    " <mask>\n</s>\n\n<s> <|endoftext|> [unused1] [unused98]",
    "##ing ## ing play##ing # #",
    "Ġliteral ĠĠ Ċ č ▁under Âł",
    "“quoted” ‘single’ „low“ «guillemets» … — – ‐ ‑ − · • † ‡ § ¶",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "^ ` ~ | < > = + $ ¬ × ÷ ± ∀ ∑ √ ∞ ≠ ← ↔ ⇒ ■ ☃ ♥ ™ © ® ° µ ª º",
    "https://user:pw@example.org:8080/a/b.html?x=1&y=%20#frag someone@example.org C:\\dir\\file.txt",
    "def f(x):\n\treturn {'a': [1, 2], \"b\": x ** 2}  # done\n",
    "aGVsbG8gd29ybGQ" * 12 + "==",
    "camelCase snake_case kebab-case SCREAMING_CASE iPhone McDonald",
    "The quick brown fox jumps over the lazy dog. " * 20,
    "mixed Ünïcödé\x00 [SEP] 日本 \u0301 'll  \r\n\u2028<mask>🙂\ufeff ##x İ " + "w" * 101,
)
