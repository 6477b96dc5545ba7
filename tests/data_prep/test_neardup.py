"""Near duplicates: what is found, what never is, and that neither order nor partition enters."""

import itertools
import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
import zstandard

from data_prep import document_pairs as dp
from data_prep import minhash, nearcheck, neardup, shingles, tables
from data_prep.errors import DataError
from data_prep.neardup import NearDuplicates, NearTask, PairsTask
from data_prep.storage import folder

CONFIG = NearDuplicates()
VOCABULARY = [f"{a}{b}{c}" for a, b, c in itertools.product("bdfgklmnprst", "aeiou", "bdglmnrst")]


def reference_words(text: str) -> list[str]:
    """The definition in the docstring of `shingles`, character by character."""
    return re.findall(r"[a-z0-9\u00c0-\u1fff\u2c00-\u2fff\u3040-\ufefe\uff10-\uff19\uff20-\U0010ffff]+", text.lower())


def reference_set(text: str, n: int = 5) -> set[tuple[str, ...]]:
    words = reference_words(text)
    return {tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, min(len(words), 1)))}


def reference_jaccard(a: str, b: str) -> float:
    one, two = reference_set(a), reference_set(b)
    return len(one & two) / len(one | two)


def prose(rng: random.Random, words: int) -> list[str]:
    return [rng.choice(VOCABULARY) for _ in range(words)]


def edited(rng: random.Random, words: list[str], edits: int) -> list[str]:
    """The words with some of them replaced, far enough apart that each edit costs five shingles."""
    out = list(words)
    for place in rng.sample(range(5, len(words) - 5, 6), edits):
        out[place] = "changed" + out[place]
    return out


def store(corpus: Path, units: list[list[str]]) -> None:
    for unit, texts in enumerate(units):
        with tables.document_writer(folder(corpus), unit) as writer:
            for row, text in enumerate(texts):
                writer.extend([f"{unit}-{row}"], [""], [text.encode()], [bytes(16)])


def search(corpus: Path, units: list[list[str]], parts: int = 1, config: NearDuplicates = CONFIG, **options) -> dict:
    """All five stages, each in a scrambled order of its tasks; the union's record, with the removed documents."""
    store(corpus, units)
    tasks = [
        NearTask(corpus=str(corpus), config=config, unit=unit, units=len(units), parts=parts, **options)
        for unit in range(len(units))
    ]
    random.Random(parts).shuffle(tasks)
    counts = {task.unit: neardup.signatures_unit(task)["documents"] for task in tasks}
    found = [
        neardup.pairs_unit(PairsTask(corpus=str(corpus), part=part, parts=parts, units=len(units)))
        for part in reversed(range(parts))
    ]
    for task in tasks:
        nearcheck.sets_unit(task)
    for task in tasks:
        nearcheck.check_unit(task)
    result = nearcheck.union_unit(
        nearcheck.UnionTask(
            corpus=str(corpus),
            config=config,
            sources=["even" if unit % 2 == 0 else "odd" for unit in range(len(units))],
            documents=[counts[unit] for unit in range(len(units))],
        )
    )
    assert result["files"] and all(folder(corpus).holds(listed) for listed in result["files"])
    removed = zip(*(column.tolist() for column in nearcheck.read_groups(folder(corpus))[:2]), strict=True)
    return {**result, "documents": set(removed), "left_out": sum(part["pairs_left_out"] for part in found)}


TEXTS = [
    "",
    "...",
    "one",
    "It’s 3.14 — “naïve” Ünïcode\u2028line, İstanbul ΟΔΟΣ straße",
    "don't STOP\nbelieving, it 's a co-op\u00a0in 中文字 。日本",
    "a b c d e",
    "a b c d e f a b c d e f",
    "x" * 31 + " " + "x" * 32 + " " + "x" * 33 + " " + "x" * 200 + " abcdefgh abcdefghi",
    "\u0080\u00bf\u00c0\u2000\u2bff\u2c00\u3000\u303f\u3040 😀 \ufefe\ufeff",
    "\uff00\uff0f\uff10\uff19\uff1a\uff1f\uff20\uff5e\u00e9\uffff",
]


def test_words_are_those_of_the_definition() -> None:
    expected = [reference_words(text.replace("İ", "i")) for text in TEXTS]
    made = shingles.words(TEXTS)
    assert made.ends.tolist() == np.cumsum([len(words) for words in expected]).tolist()
    hashes = made.hashes.tolist()
    by_word = dict(zip(itertools.chain(*expected), hashes, strict=True))
    assert [by_word[word] for word in itertools.chain(*expected)] == hashes
    assert len(set(by_word.values())) == len(by_word)
    for text, words in zip(TEXTS, expected, strict=True):
        places = shingles.spans(text).tolist()
        assert [text[a:b].replace("İ", "i").lower() for a, b in places] == words


def test_hashes_do_not_depend_on_the_batch() -> None:
    together = shingles.words(TEXTS)
    shingled = shingles.shingles(together, 5)
    for text, start, end in zip(TEXTS, together.starts, together.ends, strict=True):
        alone = shingles.words([text])
        assert (alone.hashes == together.hashes[start:end]).all()
        assert (shingles.shingles(alone, 5) == shingled[start:end]).all()


def test_texts_larger_than_a_block_are_cut_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text * 3 + " " + text for text in TEXTS] * 2
    words, places = shingles.words(texts), [shingles.spans(text).tolist() for text in texts]
    grams = shingles.ngrams(words.hashes, 13)
    monkeypatch.setattr(shingles, "_BLOCK", 3)
    for size in (1, 2, 3, 7, 40):
        monkeypatch.setattr(shingles, "_BLOCK_BYTES", size)
        again = shingles.words(texts)
        assert (again.hashes == words.hashes).all() and (again.ends == words.ends).all()
        assert [shingles.spans(text).tolist() for text in texts] == places
    assert (shingles.ngrams(words.hashes, 13) == grams).all()


def test_ngrams_of_every_length_are_told_apart_by_order_and_content() -> None:
    spelled = list("ababbacababbacab")
    words = shingles.words([" ".join(spelled)]).hashes
    for n in range(1, 18):
        grams = [tuple(spelled[i : i + n]) for i in range(len(spelled) - n + 1)]
        hashes = shingles.ngrams(words, n).tolist()
        assert len(hashes) == len(grams)
        assert len(set(zip(grams, hashes, strict=True))) == len(set(grams)) == len(set(hashes))


def test_jaccard_is_that_of_sets() -> None:
    rng = random.Random(1)
    texts = [" ".join(edited(rng, prose(random.Random(0), 400), edits)) for edits in (0, 1, 5, 20, 60)]
    texts += [*TEXTS, " ".join(prose(rng, 400))]
    sets = shingles.shingle_sets(texts, 5)
    assert [len(values) for values in sets] == [len(reference_set(text.replace("İ", "i"))) for text in texts]
    for (a, set_a), (b, set_b) in itertools.combinations(zip(texts[:8], sets, strict=False), 2):
        union = reference_set(a) | reference_set(b)
        expected = len(reference_set(a) & reference_set(b)) / len(union) if union else 0.0
        assert shingles.jaccard(set_a, set_b) == shingles.jaccard(set_b, set_a) == expected


def test_signature_places_agree_with_the_probability_of_the_similarity() -> None:
    """60 pairs of 448 places: the mean error is within four standard errors of zero, for low and high similarity."""
    for edits in (2, 10, 25):
        errors = []
        for seed in range(60):
            rng = random.Random(seed)
            words = prose(rng, 300)
            texts = [" ".join(words), " ".join(edited(rng, words, edits))]
            batch = shingles.words(texts)
            a, b = minhash.signatures(shingles.shingles(batch, 5), batch.ends, 448)
            errors.append(float((a == b).mean()) - reference_jaccard(*texts))
        deviation = float(np.std(errors, ddof=1))
        assert abs(np.mean(errors)) < 4 * deviation / 60**0.5
        assert deviation < 1.3 * 0.5 / 448**0.5  # no worse than independent places allow


def test_signatures_are_minima_whatever_the_blocks() -> None:
    """Long, short and empty texts against the definition."""
    values = np.random.default_rng(0).integers(0, 1 << 64, 70_000, dtype=np.uint64)
    ends = np.array([0, 3, 3, 20_000, 20_001, 69_999, 70_000, 70_000])
    made = minhash.signatures(values, ends, 20)
    factors, addends = minhash._family(20)
    x = (values >> np.uint64(32)).astype(np.uint32)
    for text, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        hashed = x[start:end, None] * factors + addends
        expected = hashed.min(axis=0) if end > start else np.full(20, 0xFFFFFFFF)
        assert (made[text] == expected).all()


def test_planted_near_duplicates_are_found_and_lesser_ones_never(tmp_path: Path) -> None:
    rng = random.Random(7)
    near, far, texts = set(), set(), []
    for number in range(300):
        words = prose(rng, rng.randrange(200, 500))
        edits = rng.randrange(1, len(words) // 110 + 1) if number % 2 == 0 else len(words) // 20
        pair = [" ".join(words), " ".join(edited(rng, words, edits)).upper().replace(" ", ", ", 20)]
        similarity = reference_jaccard(*pair)
        assert similarity >= 0.9 or similarity <= 0.7
        (near if similarity >= 0.9 else far).add(len(texts) + 1)
        texts += pair
    assert len(near) == len(far) == 150
    place = list(range(len(texts)))
    units = [[texts[i] for i in place[start : start + 77]] for start in range(0, len(texts), 77)]
    found = {unit * 77 + row for unit, row in search(tmp_path, units, parts=3)["documents"]}
    assert len(found & near) / len(near) >= 0.95
    assert not found - near


def test_planted_near_duplicates_of_real_documents_are_found(tmp_path: Path) -> None:
    """Words of real documentation exchanged here and there; similarity by plain sets."""
    root = os.environ.get("ELECTRA_TEST_DATA")
    if not root:
        pytest.skip("ELECTRA_TEST_DATA names no folder with corpora")
    with zstandard.open(f"{root}/corpus/python_docs.jsonl.zst", "rt", encoding="utf-8", newline="\n") as file:
        originals = [json.loads(line)["text"] for line in file][:200]
    rng = random.Random(9)
    copies = []
    for text in originals:
        words = text.split()
        for place in rng.sample(range(len(words)), max(1, len(words) // 150)):
            words[place] = "planted"
        copies.append(" ".join(words))
    similar = [reference_jaccard(*pair) for pair in zip(originals, copies, strict=True)]
    near = {row for row, similarity in enumerate(similar) if similarity >= 0.9}
    below = {row for row, similarity in enumerate(similar) if similarity < 0.8}
    assert len(near) >= 150
    found = {row for unit, row in search(tmp_path, [originals, copies], parts=2)["documents"] if unit == 1}
    assert len(found & near) / len(near) >= 0.95
    assert not found & below


def test_neither_partition_nor_units_nor_order_enter(tmp_path: Path) -> None:
    rng = random.Random(3)
    texts = []
    for _ in range(40):
        words = prose(rng, 250)
        texts += [" ".join(edited(rng, words, edits)) for edits in range(4)]
    rng.shuffle(texts)

    def removed(name: str, cuts: list[int], parts: int, order: list[int] | None = None) -> tuple[set[str], set[int]]:
        ordered = [texts[i] for i in order or range(len(texts))]
        units = [ordered[a:b] for a, b in itertools.pairwise([0, *cuts, len(texts)])]
        made = search(tmp_path / name, units, parts)
        return {units[unit][row] for unit, row in made["documents"]}, made["groups"], made["removed"]

    first = removed("a", [], 1)
    assert first[2] == len(first[0]) >= 100
    assert removed("b", [10, 10, 11, 90], 1) == first
    assert removed("c", [50], 7) == first
    assert removed("d", [50, 120], 60) == first
    backwards = removed("e", [30], 5, list(reversed(range(len(texts)))))
    assert backwards[1:] == first[1:]  # the same groups, each of which keeps another document


def test_a_chain_is_one_group_and_keeps_its_first(tmp_path: Path) -> None:
    rng = random.Random(5)
    a = prose(rng, 400)
    b, c = list(a), None
    for place in range(10, 80, 10):
        b[place] = "left" + b[place]
    c = list(b)
    for place in range(200, 270, 10):
        c[place] = "right" + c[place]
    texts = [" ".join(words) for words in (a, b, c)]
    similar = [reference_jaccard(texts[i], texts[j]) for i, j in ((0, 1), (1, 2), (0, 2))]
    assert similar[0] >= 0.8 and similar[1] >= 0.8 and similar[2] < 0.8
    assert search(tmp_path / "abc", [[texts[0], texts[1]], [texts[2]]])["documents"] == {(0, 1), (1, 0)}
    assert search(tmp_path / "cab", [[texts[2]], [texts[0], texts[1]]])["documents"] == {(1, 0), (1, 1)}
    assert search(tmp_path / "ac", [[texts[0]], [texts[2]]])["documents"] == set()


def test_the_threshold_is_reached_by_equality(tmp_path: Path) -> None:
    """Sets of 8 and 10 shingles of which 8 are shared: exactly 0.8."""
    words = prose(random.Random(2), 14)
    assert reference_jaccard(" ".join(words), " ".join(words[:12])) == 0.8
    config = NearDuplicates(bands=200, rows=1)
    units = [[" ".join(words), " ".join(words[:12])]]
    assert search(tmp_path / "at", units, config=config)["documents"] == {(0, 1)}
    above = NearDuplicates(bands=200, rows=1, threshold=0.8001)
    assert search(tmp_path / "above", units, config=above)["documents"] == set()


def test_short_and_wordless_documents(tmp_path: Path) -> None:
    """Without words: never. With fewer than five: by equality of all of them."""
    units = [["...", "!!!", "Yes, we can", "yes we can!", "yes we", "no"]]
    assert search(tmp_path, units)["documents"] == {(0, 3)}


def test_excluded_documents_neither_go_nor_take_others_with_them(tmp_path: Path) -> None:
    words = " ".join(prose(random.Random(4), 100))
    units = [[words, "something else entirely"], [words + " end", words]]
    plain = search(tmp_path / "plain", units)
    assert plain["documents"] == {(1, 0), (1, 1)}
    corpus = folder(tmp_path / "excluded")
    neardup.write_excluded(corpus, "excluded.bin", np.array([0, 1]), np.array([0, 1]), 2)
    made = search(tmp_path / "excluded", units, excluded="excluded.bin")
    assert made["documents"] == set()
    assert made["by_source"] == {"even": {"documents": 1, "removed": 0}, "odd": {"documents": 1, "removed": 0}}


def test_alarm_names_the_source_that_loses_too_much(tmp_path: Path) -> None:
    rng = random.Random(6)
    words = prose(rng, 200)
    copies = [" ".join(edited(rng, words, 1)) for _ in range(4)]
    made = search(tmp_path, [[" ".join(prose(rng, 200)) for _ in range(10)], [*copies, " ".join(prose(rng, 200))]])
    assert made["by_source"]["odd"] == {"documents": 5, "removed": 3}
    assert len(made["alarms"]) == 1 and made["alarms"][0].startswith("odd loses 3 of 5 documents")


def test_large_buckets_stay_linear_and_connected(tmp_path: Path) -> None:
    """300 copies that differ in one word each are one group, without 44,850 pairs a band."""
    rng = random.Random(8)
    words = prose(rng, 300)
    texts = [" ".join([*words[: 10 + i // 2], f"new{i}", *words[10 + i // 2 :]]) for i in range(300)]
    made = search(tmp_path, [texts[:150], texts[150:]], parts=2)
    assert made["documents"] == {(i // 150, i % 150) for i in range(1, 300)}
    assert made["largest_group"] == 300 and made["left_out"] > 0


def test_bucket_pairs_are_all_pairs_of_small_buckets() -> None:
    keys = np.array([5, 5, 5, 9, 1, 1, 7], dtype=np.uint64)
    documents = np.array([30, 10, 20, 40, 60, 50, 70])
    pairs, left_out = dp.bucket_pairs(keys, documents)
    assert pairs.tolist() == [[10, 20], [10, 30], [20, 30], [50, 60]] and left_out == 0
    assert dp.bucket_pairs(keys[:0], documents[:0])[0].shape == (0, 2)
    pairs, left_out = dp.bucket_pairs(np.zeros(20, dtype=np.uint64), np.arange(20))
    expected = {(i, i + d) for d in (1, 2) for i in range(20 - d)} | {(0, i) for i in range(1, 20)}
    assert [tuple(pair) for pair in pairs.tolist()] == sorted(expected) and left_out == 190 - len(expected)


def test_components_against_a_search_of_the_graph() -> None:
    rng = np.random.default_rng(0)
    for nodes, edges in ((2, 1), (50, 30), (400, 250), (400, 1000)):
        pairs = rng.integers(0, nodes, (edges, 2))
        pairs = np.concatenate([pairs[pairs[:, 0] != pairs[:, 1]], np.stack([np.arange(99), np.arange(1, 100)], 1)])
        neighbours: dict[int, set[int]] = {}
        for a, b in pairs.tolist():
            neighbours.setdefault(a, set()).add(b)
            neighbours.setdefault(b, set()).add(a)
        expected: dict[int, int] = {}
        for start in sorted(neighbours):
            stack = [start] if start not in expected else []
            while stack:
                node = stack.pop()
                expected[node] = start
                stack += [other for other in neighbours[node] if other not in expected]
        documents, first = dp.components(pairs)
        assert dict(zip(documents.tolist(), first.tolist(), strict=True)) == expected


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    store(tmp_path, [["some words that are here"]])
    task = NearTask(corpus=str(tmp_path), config=CONFIG, unit=0, units=1, parts=1)
    neardup.signatures_unit(task)
    bands = tmp_path / neardup.NEAR / "bands" / "00000.bin"
    bands.write_bytes(bands.read_bytes()[:-1])
    pairs = PairsTask(corpus=str(tmp_path), part=0, parts=1, units=1)
    with pytest.raises(DataError, match=r"bands/00000\.bin ends early"):
        neardup.pairs_unit(pairs)
    bands.unlink()
    with pytest.raises(DataError, match=r"bands/00000\.bin is missing"):
        neardup.pairs_unit(pairs)


def test_parts_bound_the_records_of_one() -> None:
    assert neardup.pair_parts(0, CONFIG) == neardup.pair_parts(1000, CONFIG) == 1
    assert neardup.pair_parts(10_000_000, CONFIG) == 70  # 140 million records
