"""Decontamination: planted evaluation texts are found however they stand, and nothing else is."""

import hashlib
import json
import os
import random
import re
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from data_prep import decontaminate, evaluation_sets, ngram_index, shingles, tables
from data_prep.decontaminate import DecontaminateTask, Decontamination, IndexTask, ReportTask
from data_prep.errors import ConfigError, DataError
from data_prep.evaluation_sets import EvaluationSet
from data_prep.storage import folder

FILLER = [
    "nothing",
    "here",
    "was",
    "ever",
    "asked",
    "of",
    "anyone",
    "who",
    "had",
    "been",
    "examined",
    "in",
    "any",
    "way",
]
LONG = "the quick brown fox jumps over the lazy dog while seven other animals look on quietly"  # 16 words
SHORT = "a short sentence of no more than ten words"  # 9 words
TINY = "only seven words are in this one"  # 7 words


def evaluation(tmp_path: Path, *lines: str) -> EvaluationSet:
    """A set of the GLUE layout with one task, `Task`."""
    path = tmp_path / "eval" / "Task"
    path.mkdir(parents=True, exist_ok=True)
    rows = [f"{number}\t{line}\t0" for number, line in enumerate(lines)]
    (path / "dev.tsv").write_text("\n".join(["index\tsentence\tlabel", *rows]) + "\n", encoding="utf-8")
    return EvaluationSet(name="suite", path=str(tmp_path / "eval"))


def run(tmp_path: Path, sets: list[EvaluationSet], units: list[list[str]], min_chars: int = 1, **options) -> dict:
    """All three stages: the report, the index's record, and per (unit, row) the reason or the cuts."""
    corpus = folder(tmp_path / "corpus")
    for unit, texts in enumerate(units):
        with tables.document_writer(corpus, unit) as writer:
            for row, text in enumerate(texts):
                writer.extend([str(row)], [""], [text.encode()], [bytes(16)])
    config = Decontamination(sets=tuple(sets), **options)
    index = decontaminate.index_unit(IndexTask(corpus=corpus.location, config=config))
    removed, cuts = {}, {}
    for unit in range(len(units)):
        result = decontaminate.decontaminate_unit(
            DecontaminateTask(
                corpus=corpus.location,
                config=config,
                unit=unit,
                min_chars=min_chars,
            )
        )
        removed |= {(unit, row): reason for row, reason in decontaminate.read_removed(corpus, unit).items()}
        cuts |= {(unit, row): spans for row, spans in decontaminate.read_cuts(corpus, unit).items()}
        assert corpus.listed([name for name, _, _ in result["files"]]) == result["files"]
        assert result["documents_removed"] == sum(place[0] == unit for place in removed)
        assert result["documents_cut"] == sum(place[0] == unit for place in cuts)
    report = decontaminate.report_unit(ReportTask(corpus=corpus.location, units=len(units)))
    return {"report": report, "index": index, "removed": removed, "cuts": cuts}


def within(text: str, seed: int = 0) -> str:
    rng = random.Random(seed)
    before, after = ([rng.choice(FILLER) for _ in range(40)] for _ in range(2))
    return f"{' '.join(before)} {text} {' '.join(after)}"


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


DISGUISES = {
    "as it is": lambda text: text,
    "embedded in a line": within,
    "wrapped": lambda text: within("\n".join(textwrap.wrap(text, 24))),
    "a word a line": lambda text: within("\r\n".join(text.split())),
    "upper case": lambda text: within(text.upper()),
    "other punctuation": lambda text: within("“" + "… – ".join(_words(text)) + "”!"),
    "no punctuation": lambda text: within(" ".join(_words(text))),
    "across paragraphs": lambda text: within("\n\n".join([" ".join(_words(text)[:5]), " ".join(_words(text)[5:])])),
}


@pytest.mark.parametrize("text", [LONG, SHORT])
def test_a_planted_text_is_found_in_every_disguise(tmp_path: Path, text: str) -> None:
    planted = [disguise(text) for disguise in DISGUISES.values()]
    made = run(tmp_path, [evaluation(tmp_path, LONG, SHORT)], [planted, [within("")]])
    assert made["removed"] == {(0, row): "contaminated:suite/Task" for row in range(len(planted))}


def test_thirteen_words_of_a_longer_text_are_enough_and_twelve_are_not(tmp_path: Path) -> None:
    words = LONG.split()
    thirteen = [within(" ".join(words[start : start + 13])) for start in range(4)]
    twelve = [within(" ".join(words[start : start + 12])) for start in range(5)]
    spread = [within(" ".join([*words[:12], "and", *words[4:16]])), within(" ".join(reversed(words)))]
    made = run(tmp_path, [evaluation(tmp_path, LONG)], [thirteen + twelve + spread])
    assert set(made["removed"]) == {(0, row) for row in range(4)}


def test_short_texts_match_as_a_whole_and_tiny_ones_never(tmp_path: Path) -> None:
    words = SHORT.split()
    documents = [within(SHORT), within(" ".join(words[:8])), within(" ".join(words[1:])), within(TINY), TINY]
    made = run(tmp_path, [evaluation(tmp_path, SHORT, TINY)], [documents])
    assert set(made["removed"]) == {(0, 0)}
    assert made["index"]["tasks"] == {"suite/Task": {"examples": 2, "too_short": 1}}
    lower = run(tmp_path / "lower", [evaluation(tmp_path, SHORT, TINY)], [documents], floor=7)
    assert set(lower["removed"]) == {(0, 0), (0, 3), (0, 4)}


def test_texts_never_match_across_documents_or_examples(tmp_path: Path) -> None:
    words = LONG.split()
    half, rest = " ".join(words[:9]), " ".join(words[9:])
    assert run(tmp_path, [evaluation(tmp_path, LONG)], [[half, rest, half], [rest]])["removed"] == {}
    # The two examples stand one after the other in the index, never in one text.
    split = run(tmp_path / "b", [evaluation(tmp_path / "b", half + " x y z w", "q r s t " + rest)], [[LONG]])
    assert split["removed"] == {}


def test_the_report_counts_documents_and_examples_by_task(tmp_path: Path) -> None:
    chosen = evaluation(tmp_path, LONG, SHORT, SHORT.upper(), "an example of which there is nothing in any document")
    units = [[within(LONG) + within(SHORT), within(SHORT)], [within(SHORT, 1), within(""), within(LONG, 1)]]
    report = run(tmp_path, [chosen], units)["report"]
    assert report == {
        "suite/Task": {
            "documents_hit": 4,
            "documents_hit_by_short_rule": 2,
            "examples_hit": 3,
            "examples_hit_by_short_rule": 2,
        }
    }


def test_cut_takes_the_match_and_its_margin_and_keeps_the_rest(tmp_path: Path) -> None:
    text = f"{'a' * 9} {'b' * 9} {LONG} {'c' * 9} {'d' * 9}"
    made = run(tmp_path, [evaluation(tmp_path, LONG)], [[text]], policy="cut", cut_margin=3)
    spans = made["cuts"][0, 0]
    assert [text[start:stop] for start, stop in spans] == [f"{'b' * 9} {LONG} {'c' * 9}"]
    assert decontaminate.cut(text, spans) == f"{'a' * 9}\n\n{'d' * 9}"
    exact = run(tmp_path / "exact", [evaluation(tmp_path, LONG)], [[text]], policy="cut", cut_margin=0)
    assert [text[start:stop] for start, stop in exact["cuts"][0, 0]] == [LONG]


def test_cuts_count_characters_not_bytes_and_leave_nothing_to_find(tmp_path: Path) -> None:
    text = (
        "Ünïcödé “wörds” — 中文字 😀 İstanbul " * 20
        + LONG
        + "; "
        + "naïve “ÉTÉ” 😀 " * 40
        + SHORT.upper()
        + " end" * 90
    )
    chosen = evaluation(tmp_path, LONG, SHORT)
    made = run(tmp_path, [chosen], [[text]], policy="cut", cut_margin=50)
    spans = made["cuts"][0, 0]
    assert len(spans) == 2 and made["removed"] == {}
    for (start, stop), planted in zip(spans, (LONG, SHORT.upper()), strict=True):
        assert 50 <= text.index(planted) - start <= 60 and 50 <= stop - text.index(planted) - len(planted) <= 60
        assert text[start - 1 : start].isspace() and text[stop : stop + 1].isspace()
    rest = decontaminate.cut(text, spans)
    assert run(tmp_path / "again", [chosen], [[rest]])["removed"] == {}


def test_a_document_of_which_too_little_is_left_is_dropped(tmp_path: Path) -> None:
    text = within(LONG)
    chosen = evaluation(tmp_path, LONG)
    options = {"policy": "cut", "cut_margin": 20}
    left = decontaminate.cut(text, run(tmp_path, [chosen], [[text]], **options)["cuts"][0, 0])
    kept = run(tmp_path, [chosen], [[text]], min_chars=len(left), **options)
    assert kept["removed"] == {} and len(kept["cuts"]) == 1
    dropped = run(tmp_path, [chosen], [[text]], min_chars=len(left) + 1, **options)
    assert set(dropped["removed"]) == {(0, 0)} and dropped["cuts"] == {}


def test_cut_joins_what_is_left_and_merges_what_touches() -> None:
    assert decontaminate.cut("one two three", []) == "one two three"
    assert decontaminate.cut("one two three", [(4, 7)]) == "one\n\nthree"
    assert decontaminate.cut("one two three", [(0, 7), (8, 13)]) == ""
    found = ngram_index.Hits(
        document=np.zeros(3, dtype=np.int64),
        word=np.array([1, 2, 6]),
        length=np.array([2, 2, 1]),
        example=np.zeros(3, dtype=np.int64),
        short=np.zeros(3, dtype=np.bool_),
    )
    text = "w0 w1 w2 w3 w4 w5 w6 w7"
    assert decontaminate.cut_spans(text, found, 0) == [(3, 11), (18, 20)]
    assert decontaminate.cut_spans(text, found, 1) == [(0, 14), (15, 23)]


def test_equal_hashes_of_different_words_are_no_hit() -> None:
    """A lookup that takes every place for a candidate: only the words decide."""
    index = ngram_index.build([(0, LONG), (1, SHORT), (2, SHORT + " and more")], 13, 8)
    searcher = ngram_index.Searcher(index, 13, 8)

    class Everything:
        def __init__(self, grams: ngram_index.Grams) -> None:
            self.places = grams.places

        def find(self, hashes: shingles.Hashes) -> tuple[ngram_index.Integers, ngram_index.Integers]:
            return np.repeat(np.arange(len(hashes)), len(self.places)), np.tile(self.places, len(hashes))

    documents = shingles.words([within(SHORT), within(""), within(LONG)])
    expected = searcher.find(documents)
    searcher._long, searcher._short = Everything(index.long), Everything(index.short)
    found = searcher.find(documents)
    assert expected.document.tolist() == [0, 2, 2, 2, 2] and expected.example.tolist() == [1, 0, 0, 0, 0]
    assert found.word.tolist() == expected.word.tolist() == [40, 40, 41, 42, 43]
    assert found.short.tolist() == expected.short.tolist() == [True, False, False, False, False]


def test_the_index_survives_its_file(tmp_path: Path) -> None:
    corpus = folder(tmp_path)
    for texts in ([(0, LONG), (1, TINY), (2, SHORT)], [(0, TINY)], []):
        index = ngram_index.build(texts, 13, 8)
        ngram_index.save(index, corpus, "index.bin")
        loaded = ngram_index.load(corpus, "index.bin")
        assert (loaded.words == index.words).all() and (loaded.examples == index.examples).all()
        hits = ngram_index.Searcher(loaded, 13, 8).find(shingles.words([LONG, "", SHORT]))
        assert sorted(set(hits.example.tolist())) == [number for number, text in texts if text != TINY]


def test_layouts_and_splits(tmp_path: Path) -> None:
    base = tmp_path / "sets"
    files = {
        "glue/CoLA/dev.tsv": "gj04\t1\t\tfirst sentence\ngj04\t0\t*\tsecond one\n",
        "glue/CoLA/train.tsv": "gj04\t1\t\tnot read\n",
        "glue/MRPC/test.tsv": '\ufeffQuality\t#1 ID\t#1 String\t#2 String\n1\t2\t"left\u2028side\tright side\n',
        "glue/MNLI/dev_matched.subset.tsv": "id\tsentence1\tsentence2\tlabel\r\n1\tone\ttwo\tneutral\r\n2\tthree\r\n",
        "squad/train-v2.0.json": "not read",
        "squad/pred-v2.json": "{}",
        "squad/x-dev-v2.0.json": json.dumps(
            {"data": [{"paragraphs": [{"context": "text", "qas": [{"question": "why?"}, {"question": "how?"}]}]}]}
        ),
        "other/valid.jsonl": '{"text": "one", "choices": ["a", {"b": "c"}], "label": 3}\n\n{"text": "two"}\n',
        "other/test.txt": "first block\nstill first\n \nsecond\n",
    }
    for name, content in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(content, encoding="utf-8", newline="")

    def read(name: str, path: str, *splits: evaluation_sets.Split) -> list[tuple[str, list[str]]]:
        chosen = EvaluationSet(name=name, path=str(base / path))
        found = evaluation_sets.find_files(chosen, splits or ("dev", "test"))
        return [(example.task, example.texts) for file in found for example in evaluation_sets.read_examples(file)]

    assert read("g", "glue") == [
        ("g/CoLA", ["first sentence"]),
        ("g/CoLA", ["second one"]),
        ("g/MNLI", ["one", "two"]),
        ("g/MNLI", ["three"]),
        ("g/MRPC", ['"left\u2028side', "right side"]),
    ]
    assert read("g", "glue", "train") == [("g/CoLA", ["not read"])]
    assert read("s", "squad") == [("s", ["text"]), ("s", ["why?"]), ("s", ["how?"])]
    assert read("o", "other") == [
        ("o", ["first block\nstill first"]),
        ("o", ["second\n"]),
        ("o", ["one", "a", "c"]),
        ("o", ["two"]),
    ]
    assert read("o", "other/valid.jsonl", "train") == [("o", ["one", "a", "c"]), ("o", ["two"])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.tsv", b"a\tb\n1\t2\n", r"dev\.tsv:1: no column of the header is one of GLUE's texts"),
        ("dev.tsv", b"index\tsentence\n", r"dev\.tsv holds no examples"),
        ("dev.tsv", b"sentence\n\xff\n", r"dev\.tsv cannot be read as UTF-8"),
        ("dev.json", b'{"data": [{"title": "t"}]}', r"dev\.json has not the layout of SQuAD"),
        ("dev.json", b"{", r"dev\.json has not the layout of SQuAD"),
        ("dev.jsonl", b'{"a": "b"}\n{"a\n', r"dev\.jsonl:2 is not JSON"),
        ("dev.json", b"[" * 100_000, r"dev\.json has not the layout of SQuAD"),
        ("dev.jsonl", b'{"a": "b"}\n' + b"[" * 100_000, r"dev\.jsonl:2 is not JSON"),
        ("dev.json", b'{"data": [{"paragraphs": [{"context": 5, "qas": []}]}]}', r"dev\.json .*'a int where a text"),
        (
            "dev.json",
            b'{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": null}]}]}]}',
            r"dev\.json has not the layout of SQuAD .*'a NoneType where a text",
        ),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    chosen = EvaluationSet(name="set", path=str(tmp_path))
    with pytest.raises(DataError, match=message):
        for file in evaluation_sets.find_files(chosen, ("dev",)):
            list(evaluation_sets.read_examples(file))


def test_a_name_that_is_not_utf8_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).touch()  # of no set
    (tmp_path / "dev.txt").write_text("text")
    chosen = EvaluationSet(name="set", path=str(tmp_path))
    assert [file.name for file in evaluation_sets.find_files(chosen, ("dev",))] == ["dev.txt"]
    (tmp_path / os.fsdecode(b"\xff.dev.txt")).write_text("text")
    with pytest.raises(ConfigError, match=r"the name of the file .*udcff\.dev\.txt' is not UTF-8; rename it"):
        evaluation_sets.find_files(chosen, ("dev",))


def test_a_set_without_files_and_impossible_settings_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigError, match=f"{path} holds no .tsv, .json, .jsonl, .txt file of dev or test"):
            evaluation_sets.find_files(EvaluationSet(name="set", path=str(path)), ("dev", "test"))
    chosen = EvaluationSet(name="set", path=str(tmp_path))
    with pytest.raises(ValidationError, match="floor is 14, which must not exceed ngram, 13"):
        Decontamination(sets=(chosen,), floor=14)
    with pytest.raises(ValidationError):
        Decontamination(sets=())


def test_versions_follow_the_content_and_not_the_place(tmp_path: Path) -> None:
    def versions(place: str, *lines: str) -> list[list[str]]:
        return decontaminate.set_versions(Decontamination(sets=(evaluation(tmp_path / place, *lines),)))

    assert versions("a", LONG) == versions("b", LONG) != versions("c", LONG + "!")
    content = (tmp_path / "a" / "eval" / "Task" / "dev.tsv").read_bytes()
    assert versions("a", LONG) == [["suite/Task", "Task/dev.tsv", hashlib.sha256(content).hexdigest()]]


def reference_words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9\u00c0-\u1fff\u2c00-\u2fff\u3040-\ufefe\uff10-\uff19\uff20-\U0010ffff]+", text.lower())


def test_every_glue_sentence_is_found_however_it_stands(tmp_path: Path) -> None:
    """The real sets: every text of eight words and more, in one disguise or another, by its own example."""
    root = os.environ.get("ELECTRA_TEST_DATA")
    if not root:
        pytest.skip("ELECTRA_TEST_DATA names no folder with GLUE")
    chosen = EvaluationSet(name="glue", path=f"{root}/glue")
    texts, tasks = [], []
    for file in evaluation_sets.find_files(chosen, ("dev", "test")):
        for example in evaluation_sets.read_examples(file):
            texts += [(len(tasks), text) for text in example.texts]
            tasks.append(example.task)
    assert Counter(tasks)["glue/CoLA"] == 1043 and Counter(tasks)["glue/QNLI"] == 5463 and len(set(tasks)) == 9
    searcher = ngram_index.Searcher(ngram_index.build(texts, 13, 8), 13, 8)
    long_enough = [(example, text) for example, text in texts if len(reference_words(text)) >= 8]
    assert len(long_enough) > 15_000
    by_words: dict[tuple[str, ...], set[int]] = {}
    for example, text in long_enough:
        by_words.setdefault(tuple(reference_words(text)), set()).add(example)
    disguises = list(DISGUISES.values())
    planted = [disguises[number % len(disguises)](text) for number, (_, text) in enumerate(long_enough)]
    hits = searcher.find(shingles.words(planted))
    found: dict[int, set[int]] = {}
    for document, example in zip(hits.document.tolist(), hits.example.tolist(), strict=True):
        found.setdefault(document, set()).add(example)
    missed = [
        text
        for number, (example, text) in enumerate(long_enough)
        if example not in found.get(number, ()) and len(by_words[tuple(reference_words(text))]) <= 64
    ]
    assert missed == [] and len(found) == len(planted)
    assert len(searcher.find(shingles.words([within("", seed) for seed in range(500)])).word) == 0


def test_no_phantom_hits_in_texts_that_share_twelve_words(tmp_path: Path) -> None:
    """Real sentences with a word put in after every twelfth: the index finds none of them, and a set agrees."""
    root = os.environ.get("ELECTRA_TEST_DATA")
    if not root:
        pytest.skip("ELECTRA_TEST_DATA names no folder with GLUE")
    chosen = EvaluationSet(name="glue", path=f"{root}/glue/RTE")
    files = evaluation_sets.find_files(chosen, ("dev",))
    texts = [text for file in files for example in evaluation_sets.read_examples(file) for text in example.texts]
    long = [text for text in texts if len(reference_words(text)) >= 13]
    grams = {tuple(words[i : i + 13]) for words in map(reference_words, long) for i in range(len(words) - 12)}
    broken = []
    for text in long:
        words = reference_words(text)
        broken.append(" ".join(" ".join(words[i : i + 12]) + " zzz" for i in range(0, len(words), 12)))
        assert not grams & {tuple(reference_words(broken[-1])[i : i + 13]) for i in range(len(words))}
    searcher = ngram_index.Searcher(ngram_index.build(enumerate(long), 13, 8), 13, 8)
    assert len(searcher.find(shingles.words(broken)).word) == 0
    assert len(set(searcher.find(shingles.words(long)).document.tolist())) == len(long)
