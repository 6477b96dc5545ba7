"""The fast engines give the reference's ids, and one that does not is caught before or while it is used."""

import io
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep import engines, installed_docs, sentences, tokenizer
from data_prep.engines import ADVERSARIAL, CheckedEncoder, Engine, EngineMismatch
from data_prep.tokenizer import Tokenizer, TokenizerConfig

REAL = os.environ.get("ELECTRA_TEST_DATA") or None
NEEDS_REAL = pytest.mark.skipif(REAL is None, reason="ELECTRA_TEST_DATA names no folder with vocab/ and corpus/")
TRAINED = {
    "uncased": TokenizerConfig(vocab_size=1500),
    "cased": TokenizerConfig(vocab_size=1500, lowercase=False),
    "bpe": TokenizerConfig(kind="bpe", vocab_size=1500, lowercase=False),
}
VOCABULARIES = {
    "uncased": ("bert-base-uncased", True),
    "cased": ("bert-base-uncased/vocab.txt", False),
    "bpe": ("roberta-base", True),
}


def docstrings(size: int) -> Iterator[str]:
    """Prose of the standard library's modules."""
    for file in installed_docs.list_files(("stdlib",)):
        for _, _, prose in installed_docs.documents("stdlib", file.name, file.path.read_bytes()):
            yield prose
            size -= len(prose)
            if size <= 0:
                return


def random_strings(count: int) -> list[str]:
    """Random Unicode, every plane and the odd corners of the first one, blanks and letters in between."""
    rng = random.Random(20)
    ascii_, corners = (
        range(0x20, 0x7F),
        (range(0xA0), range(0x300, 0x370), range(0x2000, 0x2070), range(0xFE00, 0x10000)),
    )
    scripts = (range(0x100, 0x3000), range(0x3000, 0xD800), range(0xE000, 0x10000))
    planes = (range(0x10000, 0x14000), range(0x1D400, 0x1D800), range(0x1F300, 0x1F700), range(0x20000, 0x110000))
    pools = [ascii_] * 8 + [*corners, *scripts, *planes]
    return [
        "".join(" " if rng.random() < 0.15 else chr(rng.choice(rng.choice(pools))) for _ in range(rng.randint(0, 50)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(docstrings(400_000))


@pytest.fixture(scope="module")
def made(texts: list[str]) -> dict[str, Tokenizer]:
    return {kind: tokenizer.train(texts, config) for kind, config in TRAINED.items()}


def engine_of(reference: Tokenizer) -> Engine:
    engine = engines.fast_engine(reference)
    assert isinstance(engine, Engine), engine
    return engine


def differing(engine: Engine, reference: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Texts on which the engine and `tokenizers` itself differ, each encoded by itself."""
    got = engine.encode_flat(texts)
    starts = [0, *got.ends.tolist()]
    return [
        text
        for i, text in enumerate(texts)
        if got.ids[starts[i] : starts[i + 1]].tolist()
        != reference._tokenizer.encode(text, add_special_tokens=False).ids
    ]


@pytest.mark.parametrize("kind", TRAINED)
def test_engines_agree_with_tokenizers_on_a_trained_vocabulary(
    kind: str, made: dict[str, Tokenizer], texts: list[str]
) -> None:
    engine = engine_of(made[kind])
    for chosen in (ADVERSARIAL, random_strings(2_000), texts[:200], sentences.split(texts[:200])[0]):
        assert differing(engine, made[kind], chosen) == []


@NEEDS_REAL
@pytest.mark.parametrize("kind", VOCABULARIES)
def test_engines_agree_with_tokenizers_on_a_real_vocabulary(kind: str) -> None:
    import zstandard

    folder, (path, lowercase) = Path(str(REAL)), VOCABULARIES[kind]
    reference = tokenizer.load(folder / "vocab" / path, lowercase=lowercase)
    with open(folder / "corpus" / "enwiki_sample.jsonl.zst", "rb") as file:
        lines = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file))
        articles = [json.loads(line)["text"] for line, _ in zip(lines, range(20), strict=False)]
    engine = engine_of(reference)
    for chosen in (ADVERSARIAL, random_strings(2_000), articles, sentences.split(articles)[0]):
        assert differing(engine, reference, chosen) == []


def test_the_fixed_strings_are_many_and_can_be_encoded() -> None:
    assert len(set(ADVERSARIAL)) == len(ADVERSARIAL) >= 60
    assert all(text == text.encode().decode() for text in ADVERSARIAL)


@pytest.mark.parametrize("kind", TRAINED)
def test_text_that_spells_a_special_token_stays_text(kind: str, made: dict[str, Tokenizer]) -> None:
    reference = made[kind]
    tokens = list(reference.roles.values())
    spelled = [form.format(token) for token in tokens for form in ("{}", " {}", "{} ", "a {} b", "a{}b", "\n{}\n")]
    engine = engine_of(reference)
    special = reference.special
    assert not np.isin(engine.encode_flat(spelled).ids, [special.cls, special.sep, special.pad, special.mask]).any()
    assert differing(engine, reference, spelled) == []


def test_nothing_and_empty_texts(made: dict[str, Tokenizer]) -> None:
    for reference in made.values():
        for encode in (engine_of(reference).encode_flat, reference.encode_flat):
            assert encode([]).ends.tolist() == [] and encode([]).ids.dtype == np.uint16
            assert encode(["", "", ""]).ends.tolist() == [0, 0, 0] and encode(["", ""]).ids.tolist() == []
            assert encode(["", "the", ""]).ends[0] == 0 < encode(["", "the", ""]).ends[1]


@pytest.mark.parametrize("kind", ["uncased", "bpe"])
def test_an_engine_stays_on_its_thread(kind: str, made: dict[str, Tokenizer], texts: list[str]) -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("the system does not list a process's threads")
    before = len(list(tasks.iterdir()))
    engine_of(made[kind]).encode_flat(texts * 5)
    assert len(list(tasks.iterdir())) == before


def test_what_nanotoken_remembers_is_bounded(made: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    import nanotoken

    class Spy:
        """The engine, and how often it was told to forget."""

        def __init__(self, engine: Any) -> None:
            self.encode_batch, self._clear, self.cleared = engine.encode_batch, engine.clear_cache, 0

        def clear_cache(self) -> None:
            self._clear()
            self.cleared += 1

    monkeypatch.setattr(engines, "FORGET_AFTER", 100)
    engine = engine_of(made["uncased"])
    assert nanotoken.get_cache_entries() == engines.WORDS == 131_072
    spy = Spy(engine._engine)
    monkeypatch.setattr(engine, "_engine", spy)
    text = "again and again " * 2  # 32 characters: past 100 with the fourth and the eighth
    assert {tuple(engine.encode_flat([text]).ids.tolist()) for _ in range(9)} == {
        tuple(made["uncased"].encode([text])[0])
    }
    assert spy.cleared == 2


def test_what_gigatoken_remembers_is_bounded(made: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built anew when, at a look, the process has grown past the bound since the last time."""
    resident = iter([1_000, 1_000 + 50, 1_000 + 51, 5_000, 5_050, 5_051, 9_000])
    monkeypatch.setattr(engines, "_resident_bytes", lambda: next(resident))
    monkeypatch.setattr(engines, "LOOK_AFTER", 100)
    monkeypatch.setattr(engines, "GROWTH", 50)
    engine = engine_of(made["bpe"])
    text = "again and again " * 2
    built = [engine._engine]
    for _ in range(16):  # four looks: within the bound, past it, within it, past it
        assert engine.encode_flat([text]).ids.tolist() == made["bpe"].encode([text])[0]
        if engine._engine is not built[-1]:
            built.append(engine._engine)
    assert len(built) == 3
    assert list(resident) == []
    monkeypatch.undo()
    assert engines._resident_bytes() > 10_000_000 or not Path("/proc/self/statm").exists()


class Broken(Engine):
    """The engine of a tokenizer, but for one id of the texts that hold `trigger`."""

    def __init__(self, engine: Engine, trigger: str) -> None:
        self.__dict__.update(engine.__dict__)
        self.name, self._good, self._trigger = engine.name, engine, trigger

    def _build(self) -> None:
        """Built already."""

    def _bound_memory(self) -> None:
        """Too small to matter."""

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        ids, ends = self._good._encode(texts)
        for text, end in zip(texts, ends.tolist(), strict=True):
            if self._trigger in text:
                ids[end - 1] = (int(ids[end - 1]) + 1) % 1000
        return ids, ends


class Failing(Broken):
    """An engine that breaks down over a text; a panic in Rust arrives as a BaseException."""

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        if any(self._trigger in text for text in texts):
            raise BaseException("index out of bounds")
        return self._good._encode(texts)


@pytest.mark.parametrize("kind", TRAINED)
def test_the_gate_finds_one_wrong_id(kind: str, made: dict[str, Tokenizer], texts: list[str]) -> None:
    reference, engine = made[kind], engine_of(made[kind])
    assert engines.check(engine, reference, texts) is None
    only = next(text for text in texts if len(text) < 5_000)
    found = engines.check(Broken(engine, only), reference, texts)
    assert found is not None and found.text == only
    assert found.expected == reference.encode([only])[0] != found.got
    found = engines.check(Broken(engine, "there 's"), reference, [])  # of the fixed strings alone
    assert found is not None and "there 's" in found.text
    found = engines.check(Failing(engine, only), reference, texts)
    assert found is not None and found.got is None and "nothing instead of" in str(found)


def keys_of(texts: list[str]) -> NDArray[np.uint64]:
    keys = np.random.default_rng(4).integers(0, 2**64, len(texts), dtype=np.uint64)
    keys[7] = 0  # in every sample
    return keys


@pytest.mark.parametrize("kind", TRAINED)
def test_the_sample_on_the_fly_finds_one_wrong_id(kind: str, made: dict[str, Tokenizer], texts: list[str]) -> None:
    reference, engine, keys = made[kind], engine_of(made[kind]), keys_of(texts)
    wrong = texts[7]
    assert len(wrong) <= engines.SAMPLE_CHARACTERS
    clean = CheckedEncoder(reference, engine).encode(texts, keys)
    expected = reference.encode_flat(texts)
    assert np.array_equal(clean.ids, expected.ids) and np.array_equal(clean.ends, expected.ends)
    assert clean.ids.dtype == expected.ids.dtype and clean.ends.dtype == expected.ends.dtype == np.int64
    with pytest.raises(EngineMismatch, match="other ids than tokenizers"):
        CheckedEncoder(reference, Broken(engine, wrong)).encode(texts, keys)
    with pytest.raises(EngineMismatch, match=f"{engine.name}.* failed: index out of bounds"):
        CheckedEncoder(reference, Failing(engine, wrong)).encode(texts, keys)
    again = CheckedEncoder(reference, None).encode(texts, keys)  # what the caller does then
    assert np.array_equal(again.ids, clean.ids) and np.array_equal(again.ends, clean.ends)


@pytest.mark.parametrize("kind", TRAINED)
def test_of_a_long_document_the_beginning_is_compared(kind: str, made: dict[str, Tokenizer]) -> None:
    reference, key = made[kind], np.zeros(1, dtype=np.uint64)
    book = "The river follows the old road. " * 3_000
    encoder = CheckedEncoder(reference, engine_of(reference))
    assert np.array_equal(encoder.encode([book], key).ids, reference.encode_flat([book]).ids)
    assert encoder.checked == 1
    CheckedEncoder(reference, Broken(engine_of(reference), "river")).encode([book], key)  # its last id, unseen
    with pytest.raises(EngineMismatch):
        CheckedEncoder(reference, BrokenFirst(engine_of(reference), "river")).encode([book], key)


class BrokenFirst(Broken):
    """Wrong in the first id instead of the last."""

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        ids, ends = self._good._encode(texts)
        ids = ids.copy()
        ids[0] = (int(ids[0]) + 1) % 1000
        return ids, ends


def test_the_sample_goes_by_the_document_alone() -> None:
    """About one document of a thousand, the same ones in whatever batch."""
    keys = np.random.default_rng(1).integers(0, 2**64, 400_000, dtype=np.uint64)
    chosen = engines._sampled(keys)
    assert 400_000 / 1024 * 0.8 < chosen.sum() < 400_000 / 1024 * 1.2
    assert np.array_equal(chosen[1::3], engines._sampled(keys[1::3]))
    counting = np.arange(100_000, dtype=np.uint64)  # keys that are no hashes are no trap
    assert 50 < engines._sampled(counting).sum() < 150


def test_ids_outside_the_vocabulary_never_get_narrowed(made: dict[str, Tokenizer]) -> None:
    class Wild(Broken):
        def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
            ids, ends = self._good._encode(texts)
            return ids + np.uint32(1 << 16), ends  # the same ids once cut to 16 bits

    with pytest.raises(EngineMismatch, match="none of this vocabulary"):
        Wild(engine_of(made["uncased"]), "").encode_flat(["the"])


@pytest.mark.parametrize("kind", ["uncased", "bpe"])
def test_a_verdict_is_for_one_engine_one_version_and_one_tokenizer(
    kind: str, made: dict[str, Tokenizer], texts: list[str], tmp_path: Path
) -> None:
    sha256 = made[kind].save(tmp_path)
    verdict = engines.gate(tmp_path, texts[:50])
    name = {"uncased": "nanotoken", "bpe": "gigatoken"}[kind]
    assert json.loads(json.dumps(verdict)) == verdict
    assert (verdict["engine"], verdict["accepted"], verdict["reason"]) == (name, True, "")
    assert (verdict["documents"], verdict["adversarial"]) == (50, len(ADVERSARIAL))

    def used(sha256: str, verdict: dict[str, Any]) -> str:
        return engines.checked_encoder(made[kind], sha256, verdict).engine.split()[0]

    assert used(sha256, verdict) == name
    for other in ({"accepted": False}, {"version": "0.0.0"}, {"engine": "another"}):
        assert used(sha256, verdict | other) == "tokenizers"
    assert used("another tokenizer", verdict) == "tokenizers"


def test_the_gate_refuses_with_the_reason(
    made: dict[str, Tokenizer], texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = made["uncased"].save(tmp_path)

    class Altered(engines.Nanotoken):
        def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
            ids, ends = super()._encode(texts)
            return np.where(ids == ids.max(initial=0), 5, ids).astype(np.uint32), ends

    monkeypatch.setitem(engines.ENGINES, "nanotoken", Altered)
    verdict = engines.gate(tmp_path, texts[:50])
    assert not verdict["accepted"] and verdict["engine"] == "nanotoken"
    assert verdict["reason"].startswith(f"nanotoken {verdict['version']} gives other ids than tokenizers")
    assert engines.checked_encoder(made["uncased"], sha256, verdict).engine.startswith("tokenizers ")


@pytest.mark.parametrize("kind", ["uncased", "bpe"])
def test_an_absent_package_is_a_reason(
    kind: str, made: dict[str, Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    name = {"uncased": "nanotoken", "bpe": "gigatoken"}[kind]
    monkeypatch.setitem(sys.modules, name, None)
    assert engines.fast_engine(made[kind]) == f"{name} is not installed"
    made[kind].save(tmp_path)
    verdict = engines.gate(tmp_path, ["the"])
    assert (verdict["engine"], verdict["accepted"], verdict["reason"]) == (None, False, f"{name} is not installed")


def test_unsupported_tokenizers_are_a_reason(made: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    states = {
        "there is no fast engine for Unigram tokenizers": {"model": {"type": "Unigram"}},
        "nanotoken is not used for a tokenizer with added tokens": {"added_tokens": [{"special": False}]},
        "nanotoken cannot read this tokenizer: ": {"normalizer": {"type": "Nmt"}},
    }
    state = made["uncased"].state()
    for reason, change in states.items():
        monkeypatch.setattr(Tokenizer, "state", lambda self, change=change: state | change)
        found = engines.fast_engine(made["uncased"])
        assert isinstance(found, str) and found.startswith(reason)
