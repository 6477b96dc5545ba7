"""The probe suite on made-up documents: what an example is, what is kept apart, and that files do not matter."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.errors import DataError
from training.probes import TASKS, ProbesConfig, build, read_documents, without_names
from training.tasks import Example, TaskData

ADJECTIVES = ["quick", "lazy", "small", "heavy", "bright", "silent", "broken", "golden", "narrow", "early"]
NOUNS = ["river", "engine", "letter", "garden", "winter", "signal", "basket", "mirror", "ladder", "market"]
VERBS = ["follows", "covers", "leaves", "finds", "turns", "carries", "watches", "meets", "paints", "opens"]
TOPICS = ("numpy", "ray", "torch", "stdlib")
CONFIG = ProbesConfig(train_examples=300, dev_examples=120, topics=3)


def sentence(rng: np.random.Generator) -> str:
    a, b = rng.choice(NOUNS, 2, replace=False)
    first, second, verb = rng.choice(ADJECTIVES), rng.choice(ADJECTIVES), rng.choice(VERBS)
    return f"The {first} {a} {verb} the {second} {b} near {rng.integers(999)}."


def documents(count: int = 400) -> list[dict[str, str]]:
    """Documents of six sentences with a number each, so that hardly any two are alike; topics in shares 4:3:2:1."""
    rng = np.random.default_rng(0)
    topics = [topic for topic, share in zip(TOPICS, (4, 3, 2, 1), strict=True) for _ in range(share)]
    return [
        {"id": f"doc{i}", "topic": topics[i % 10], "text": " ".join(sentence(rng) for _ in range(6))}
        for i in range(count)
    ]


def write(corpus: Path, rows: list[dict[str, str]], files: int = 2) -> Path:
    folder = corpus / "heldout_documents"
    folder.mkdir(parents=True)
    for number in range(files):
        pq.write_table(pa.Table.from_pylist(rows[number::files]), folder / f"{number:05d}.parquet")
    return corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("corpus"), documents())


@pytest.fixture(scope="module")
def probes(corpus: Path) -> dict[str, TaskData]:
    return {data.task: data for data in build(corpus, list(TASKS), CONFIG)}


def origin() -> dict[str, tuple[str, int]]:
    """Every sentence's document and place in it."""
    places = {}
    for document in documents():
        for place, text in enumerate(document["text"].replace(". ", ".\n").split("\n")):
            places[text] = (document["id"], place)
    return places


def test_classes_are_balanced_exactly_where_there_is_enough(probes: dict[str, TaskData]) -> None:
    for task in ("sentence_order", "bigram_shift"):
        data = probes[task]
        assert [len(data.train), len(data.dev)] == [300, 120]
        for side in (data.train, data.dev):
            assert sum(example.label for example in side) * 2 == len(side)
        assert data.majority(task) == 0.5


def test_sentence_order_swaps_neighbours_exactly_when_it_says_so(probes: dict[str, TaskData]) -> None:
    places = origin()
    for example in probes["sentence_order"].train + probes["sentence_order"].dev:
        assert example.text_b is not None
        (document_a, a), (document_b, b) = places[example.text_a], places[example.text_b]
        assert document_a == document_b
        assert b - a == (-1 if example.label else 1)


def test_no_sentence_stands_in_two_sentence_order_examples(probes: dict[str, TaskData]) -> None:
    used = [t for e in probes["sentence_order"].train + probes["sentence_order"].dev for t in (e.text_a, e.text_b)]
    assert len(set(used)) == len(used)


def test_bigram_shift_inverts_one_adjacent_pair_exactly_when_it_says_so(probes: dict[str, TaskData]) -> None:
    places = origin()
    by_words = {tuple(sorted(text.split())): text for text in places}
    for example in probes["bigram_shift"].train + probes["bigram_shift"].dev:
        original = by_words[tuple(sorted(example.text_a.split()))].split()
        changed = [i for i, (x, y) in enumerate(zip(original, example.text_a.split(), strict=True)) if x != y]
        if example.label == 0:
            assert changed == []
        else:
            first, second = changed
            assert second == first + 1
            assert example.text_a.split()[first] == original[second]
            assert original[first].islower()  # the capital at the beginning does not move
            assert original[second].isalpha()  # nor a full stop


def test_source_topic_takes_the_most_frequent_topics_and_labels_them(probes: dict[str, TaskData]) -> None:
    data = probes["source_topic"]
    assert data.classes == ("numpy", "ray", "torch")  # stdlib is the fourth
    topic_of = {document["id"]: document["topic"] for document in documents()}
    places = origin()
    for example in data.train + data.dev:
        first = example.text_a.split(". ")[0].rstrip(".") + "."
        assert topic_of[places[first][0]] == data.classes[example.label]
    labels = [example.label for example in data.train]
    assert [labels.count(c) for c in range(3)] == [100, 100, 100]


@pytest.mark.parametrize("task", list(TASKS))
def test_no_document_and_no_text_is_on_both_sides(task: str, probes: dict[str, TaskData]) -> None:
    places, data = origin(), probes[task]

    def texts(examples: list[Example]) -> set[str]:
        return {text for e in examples for text in (e.text_a, e.text_b) if text is not None}

    assert not texts(data.train) & texts(data.dev)
    if task != "bigram_shift":  # whose sentences are changed
        sides = [{places[t.split(". ")[0].rstrip(".") + "."][0] for t in texts(e)} for e in (data.train, data.dev)]
        assert not sides[0] & sides[1]


def test_repeated_text_is_used_once(tmp_path: Path) -> None:
    rows = documents(200)
    copies = [{**row, "id": f"copy{i}", "text": rows[0]["text"]} for i, row in enumerate(rows)]
    data = build(write(tmp_path, rows + copies), ["sentence_order"], CONFIG)[0]
    pairs = [frozenset((e.text_a, e.text_b)) for e in data.train + data.dev]
    assert len(set(pairs)) == len(pairs)


def test_a_document_gives_at_most_per_document_examples(corpus: Path) -> None:
    places = origin()
    data = build(corpus, ["sentence_order"], CONFIG.model_copy(update={"per_document": 2}))[0]
    found = [places[example.text_a][0] for example in data.train]
    assert max(found.count(document) for document in set(found)) == 2


@pytest.mark.parametrize("task", list(TASKS))
def test_examples_have_the_group_of_their_document(task: str, probes: dict[str, TaskData]) -> None:
    places, data = origin(), probes[task]
    by_words = {tuple(sorted(text.split())): name for text, (name, _) in places.items()}
    documents_of: dict[int, set[str]] = {}
    for example, group in zip(data.dev, data.groups(task).tolist(), strict=True):
        first = example.text_a.split(". ")[0].rstrip(".") + "."
        documents_of.setdefault(group, set()).add(by_words[tuple(sorted(first.split()))])
    assert all(len(names) == 1 for names in documents_of.values())
    assert len(set.union(*documents_of.values())) == len(documents_of) < len(data.dev)


def test_probes_depend_on_the_documents_and_the_seed_alone(corpus: Path, tmp_path: Path) -> None:
    names = list(TASKS)
    again = [data.sha256() for data in build(corpus, names, CONFIG)]
    elsewhere = write(tmp_path, documents()[::-1], files=5)
    assert [data.sha256() for data in build(elsewhere, names, CONFIG)] == again
    other = [data.sha256() for data in build(corpus, names, CONFIG.model_copy(update={"seed": 1}))]
    assert not set(other) & set(again)


def test_the_sides_do_not_depend_on_which_other_documents_there_are(corpus: Path, tmp_path: Path) -> None:
    sides = {document.id: document.dev for document in read_documents(corpus, CONFIG)}
    fewer = write(tmp_path, documents()[:50])
    assert all(sides[document.id] == document.dev for document in read_documents(fewer, CONFIG))
    assert 0.2 < np.mean(list(sides.values())) < 0.4  # dev_fraction .3 of 400


def test_reading_is_bounded_and_a_cut_sentence_is_dropped(tmp_path: Path) -> None:
    rows = documents(100)
    rows[0]["text"] = " ".join(f"This is sentence number {i} of many." for i in range(1000))
    folder = write(tmp_path, rows)
    read = {document.id: document for document in read_documents(folder, CONFIG)}
    assert sum(len(text) + 1 for text in read["doc0"].sentences) <= 4000
    assert read["doc0"].sentences[-1].endswith(" of many.")
    assert len(read_documents(folder, CONFIG.model_copy(update={"max_documents": 30}))) == 30


def test_names_go_from_words_and_paths() -> None:
    names = ["torch", "ray", "scikit-learn"]
    assert without_names("See torch.nn.Linear, PyTorch or ray_init.", names).split() == ["See", ",", "or", "."]
    assert without_names("An array of rays; Ray's arraylist", names) == "An array of rays; 's arraylist"
    assert without_names("scikit-learn and scikit_learn.base", names).split() == ["and"]
    assert without_names("nothing to do", names) == "nothing to do"


def test_too_little_text_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    few = write(tmp_path / "few", documents(12))
    with pytest.raises(
        DataError, match=r"12 held-out documents give \d+ (train|dev) examples of sentence_order.*heldout_fraction"
    ):
        build(few, ["sentence_order"], CONFIG)
    one = write(tmp_path / "one", [{**row, "topic": "numpy"} for row in documents(100)])
    with pytest.raises(DataError, match=r"fewer than two topics.*evaluation\.tasks"):
        build(one, ["source_topic"], CONFIG)
    with pytest.raises(DataError, match="holds no parquet file"):
        build(tmp_path / "none", ["sentence_order"], CONFIG)
