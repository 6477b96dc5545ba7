"""The built-in probe suite: three small tasks made from the held-out documents, for when no benchmark is at hand.

* `sentence_order`: two neighbouring sentences of a document; are they swapped?
* `source_topic`: a passage; which of the most frequent topics (in the built-in corpus: packages) is it from? Topic
  names are removed from the passages, so that the task is not a search for a name; what remains may still be telling.
* `bigram_shift`: are two adjacent words inverted (as in SentEval, Conneau & Kiela 2018)? Close to replaced-token
  detection, hence outside the mean.

Train and dev never share a document, nor a text. Examples of one document carry its number as their group, because
their answers are not independent. Everything is a function of the documents and the configuration,
whatever the files they lie in. The scores tell models of one experiment apart; they are no benchmark's.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from data_prep import keyed, storage
from data_prep.errors import DataError
from data_prep.sentences import split
from data_prep.settings import Settings
from data_prep.storage import Location
from training.tasks import Example, Task, TaskData

MIN_EXAMPLES = 20  # a side: with fewer a score says nothing
MIN_TOPIC_DOCUMENTS = 10
MAX_CHARACTERS = 4000  # read of a document: it gives few examples, and a book must not cost more than a page
LONG_NAME = 5  # letters from which a topic name also goes inside a longer word: torch in PyTorch, not ray in array

TASKS: dict[str, Task] = {
    "sentence_order": Task(suite="probes", name="sentence_order", metrics=("accuracy",)),
    "source_topic": Task(suite="probes", name="source_topic", metrics=("accuracy",)),
    "bigram_shift": Task(suite="probes", name="bigram_shift", metrics=("accuracy",), in_mean=False),
}


class ProbesConfig(Settings):
    """Sizes of the probes. They are upper bounds: a small held-out split gives fewer, and results say how many."""

    seed: int = 0
    train_examples: PositiveInt = 3000
    dev_examples: PositiveInt = 1000
    dev_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.3  # of the documents
    max_documents: PositiveInt = 5000  # read at most these many, chosen by a hash of their ids
    per_document: PositiveInt = 8  # examples of one probe from one document
    min_words: PositiveInt = 4  # of a sentence
    max_words: PositiveInt = 20
    passage_words: PositiveInt = 16  # of a source_topic passage, at least, unless its document ends
    topics: Annotated[int, Field(ge=2)] = 8


@dataclass(frozen=True, slots=True)
class Document:
    """A held-out document as a probe sees it."""

    id: str
    topic: str
    sentences: tuple[str, ...]
    dev: bool

    @property
    def group(self) -> int:
        """A number of 63 bits made of the id."""
        return int(keyed.key("probe-group", self.id)) >> 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible example; those of lowest `rank` are taken. Equal `source` means made from the same text."""

    rank: int
    source: str
    document: Document
    example: Example


def build(corpus: Location, names: Sequence[str], config: ProbesConfig) -> list[TaskData]:
    """The probes called `names` from a corpus's held-out documents; DataError when there is too little to make one."""
    documents = read_documents(corpus, config)
    makers = {"sentence_order": _sentence_order, "source_topic": _source_topic, "bigram_shift": _bigram_shift}
    return [makers[name](documents, config) for name in names]


def read_documents(corpus: Location, config: ProbesConfig) -> list[Document]:
    """At most `max_documents` of the held-out documents (parquet: id, topic, text), in an order made of their ids."""
    import pyarrow.parquet as pq

    place = storage.folder(corpus)
    files = [place.local(name) for name in place.names("heldout_documents") if name.endswith(".parquet")]
    if not files:
        raise DataError(f"{place}/heldout_documents holds no parquet file: run `electra prepare` first.")
    ranked = sorted(
        (int(keyed.key("probe-document", config.seed, document)), document)
        for file in files
        for document in pq.read_table(file, columns=["id"])["id"].to_pylist()
    )
    rank = {document: number for number, document in ranked[: config.max_documents]}
    documents = {}
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=256, columns=["id", "topic", "text"]):
            for row in batch.to_pylist():
                if row["id"] in rank:
                    documents[row["id"]] = _document(row["id"], row["topic"] or "", row["text"], config)
    return [documents[document] for document in sorted(documents, key=lambda name: (rank[name], name))]


def _document(name: str, topic: str, text: str, config: ProbesConfig) -> Document:
    side = keyed.uniforms(keyed.key("probe-side", config.seed, name), np.zeros(1, dtype=np.int64), 1)[0, 0]
    sentences = [sentence.strip() for sentence in split([text[:MAX_CHARACTERS]])[0]]
    if len(text) > MAX_CHARACTERS:
        sentences = sentences[:-1]  # the last one may be cut
    return Document(name, topic, tuple(sentences), bool(side < config.dev_fraction))


def _sentence_order(documents: list[Document], config: ProbesConfig) -> TaskData:
    """Neighbours that share no sentence with another pair: (1st, 2nd), (3rd, 4th), …; class 1: swapped."""
    candidates = []
    for document in documents:
        sentences, fits = document.sentences, [_fits(sentence, config) for sentence in document.sentences]
        words = _words("sentence_order", config, document, len(sentences))
        for i in range(0, len(sentences) - 1, 2):
            first, second = sentences[i], sentences[i + 1]
            if not (fits[i] and fits[i + 1]) or first == second:
                continue
            swapped = int(words[i, 1] % 2)
            example = Example(*((second, first) if swapped else (first, second)), swapped, document.group)
            source = "\n".join(sorted((first, second)))
            candidates.append(Candidate(int(words[i, 0]), source, document, example))
    return _select("sentence_order", ("in order", "swapped"), candidates, documents, config)


def _bigram_shift(documents: list[Document], config: ProbesConfig) -> TaskData:
    """Sentences with two adjacent different lower-case words inverted (class 1) or as they are. Sentences without such
    a pair are not used for either class, and no capital or punctuation mark moves."""
    candidates = []
    for document in documents:
        words = _words("bigram_shift", config, document, len(document.sentences))
        for i, sentence in enumerate(document.sentences):
            tokens = sentence.split()
            places = [j for j in range(len(tokens) - 1) if _invertible(tokens[j], tokens[j + 1])]
            if not places or not _fits(sentence, config):
                continue
            shifted = int(words[i, 1] % 2)
            if shifted:
                j = places[int(words[i, 2] % len(places))]
                tokens[j], tokens[j + 1] = tokens[j + 1], tokens[j]
            example = Example(" ".join(tokens), None, shifted, document.group)
            candidates.append(Candidate(int(words[i, 0]), sentence, document, example))
    return _select("bigram_shift", ("in order", "inverted"), candidates, documents, config)


def _invertible(first: str, second: str) -> bool:
    return all(word.isalpha() and word.islower() for word in (first, second)) and first != second


def _source_topic(documents: list[Document], config: ProbesConfig) -> TaskData:
    """Passages of the topics with the most documents, an equal number of each where there are enough."""
    counts = Counter(document.topic for document in documents if document.topic)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    topics = tuple(sorted(topic for topic, n in ranked[: config.topics] if n >= MIN_TOPIC_DOCUMENTS))
    if len(topics) < 2:
        raise DataError(
            f"The held-out documents have fewer than two topics of {MIN_TOPIC_DOCUMENTS} documents, which source_topic "
            "needs: leave it out with evaluation.tasks, or raise corpus.heldout_fraction."
        )
    candidates = []
    for document in documents:
        if document.topic not in topics:
            continue
        passages = list(_passages(document, topics, config))
        words = _words("source_topic", config, document, len(passages))
        for i, passage in enumerate(passages):
            example = Example(passage, None, topics.index(document.topic), document.group)
            candidates.append(Candidate(int(words[i, 0]), passage, document, example))
    return _select("source_topic", topics, candidates, documents, config)


def _passages(document: Document, names: Sequence[str], config: ProbesConfig) -> Iterator[str]:
    """Runs of whole sentences of `passage_words` words, names removed; a shorter rest only when it is all there is."""
    words: list[str] = []
    found = 0
    for sentence in document.sentences:
        if len(sentence.split()) > config.max_words:
            continue
        words += without_names(sentence, names).split()
        if len(words) >= config.passage_words:
            yield " ".join(words)
            words, found = [], found + 1
    if not found and len(words) >= config.min_words:
        yield " ".join(words)


_CHUNK = re.compile(r"[\w.-]*\w")
_JOINTS = re.compile(r"[._-]+")


def without_names(text: str, names: Sequence[str]) -> str:
    """`text` without every word or dotted path that holds one of the names, in any case: standing alone between dots,
    dashes and underscores, or anywhere in it where the name is long."""
    bare = [_JOINTS.sub("", name.casefold()) for name in names]
    joined_text = _JOINTS.sub("", text.casefold())
    if not any(name in joined_text for name in bare):
        return text

    def kept(match: re.Match[str]) -> str:
        chunk = match.group().casefold()
        parts, joined = _JOINTS.split(chunk), _JOINTS.sub("", chunk)
        named = any(name in parts or name == joined or (len(name) >= LONG_NAME and name in joined) for name in bare)
        return "" if named else match.group()

    return _CHUNK.sub(kept, text)


def _fits(sentence: str, config: ProbesConfig) -> bool:
    return config.min_words <= len(sentence.split()) <= config.max_words


def _words(probe: str, config: ProbesConfig, document: Document, n: int) -> NDArray[np.uint64]:
    """`[n, 3]` random words of a document: rank, coin, place."""
    return keyed.bits(keyed.key("probe", probe, config.seed, document.id), np.arange(n, dtype=np.int64), 3)


def _select(
    task: str, classes: tuple[str, ...], candidates: list[Candidate], documents: list[Document], config: ProbesConfig
) -> TaskData:
    """The lowest ranks, an equal share of each class on each side; a text that was taken before is not taken again."""
    ranked = sorted(candidates, key=lambda candidate: (candidate.rank, candidate.source))
    seen: set[str] = set()
    sides: list[list[Example]] = []
    for dev, total in ((False, config.train_examples), (True, config.dev_examples)):
        used: Counter[str] = Counter()
        quota = [total // len(classes) + (c < total % len(classes)) for c in range(len(classes))]
        taken: list[Example] = []
        for candidate in ranked:
            label, source, document = int(candidate.example.label), candidate.source.casefold(), candidate.document
            if document.dev != dev or not quota[label] or source in seen or used[document.id] == config.per_document:
                continue
            seen.add(source)
            used[document.id] += 1
            quota[label] -= 1
            taken.append(candidate.example)
        if len(taken) < MIN_EXAMPLES or len({example.label for example in taken}) < 2:
            side = "dev" if dev else "train"
            raise DataError(
                f"{len(documents)} held-out documents give {len(taken)} {side} examples of {task}, too few to score: "
                "raise corpus.heldout_fraction, or leave the task out with evaluation.tasks."
            )
        sides.append(taken)
    return TaskData(suite="probes", task=task, classes=classes, train=sides[0], dev=sides[1])
