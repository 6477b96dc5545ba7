"""Decontamination: documents that hold text of an evaluation set are dropped, or the text is cut out of them.

A document is hit by an example when it shares 13 words in a row with one of the example's texts, or the whole of a text
of 8 to 12 words; see `data_prep.ngram_index` for what words are. Shorter texts are not searched for: whole sentences of
seven words stand in honest documents too, and so do some of eight to twelve, which is why those hits are counted apart.
Paraphrases, translations and the like are not found. Three stages: index (once), decontaminate (per unit), report
(once); each is a pure function of its payload and the files it reads. A unit's result names rows, so it holds as long
as the documents of the unit are the same.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from data_prep import evaluation_sets, ngram_index, shingles
from data_prep.evaluation_sets import EvaluationSet, Split
from data_prep.ngram_index import Hits
from data_prep.settings import Settings
from data_prep.storage import Folder, folder

FOLDER = "decontamination"
INDEX, EXAMPLES = f"{FOLDER}/index.bin", f"{FOLDER}/index.json"
REASON = "contaminated:"  # followed by the task of the first example that hits

Span = tuple[int, int]  # characters of a text: first, stop


class Decontamination(Settings):
    """Which evaluation sets the corpus must not hold, and what becomes of documents that do."""

    sets: Annotated[tuple[EvaluationSet, ...], Field(min_length=1)]
    splits: Annotated[tuple[Split, ...], Field(min_length=1)] = ("dev", "test")
    ngram: Annotated[int, Field(ge=2, le=100)] = 13  # words in a row that count as a hit
    floor: Annotated[int, Field(ge=1)] = 8  # shorter texts than this are not searched for
    policy: Literal["drop", "cut"] = "drop"  # the document, or the match and what is around it
    cut_margin: NonNegativeInt = 200  # characters cut on either side of a match

    @model_validator(mode="after")
    def _floor_below_ngram(self) -> "Decontamination":
        if self.floor > self.ngram:
            raise ValueError(f"floor is {self.floor}, which must not exceed ngram, {self.ngram}")
        return self


class IndexTask(Settings):
    """Payload of `index_unit`."""

    corpus: str  # address of the corpus folder
    config: Decontamination


class DecontaminateTask(Settings):
    """Payload of `decontaminate_unit`."""

    corpus: str
    config: Decontamination
    unit: int
    min_chars: PositiveInt = 1  # a document of which less is left is dropped


class ReportTask(Settings):
    """Payload of `report_unit`."""

    corpus: str
    units: int


def set_versions(config: Decontamination) -> list[list[str]]:
    """Task, name and SHA-256 of every file of the evaluation sets: what the index is a function of, besides settings.

    ConfigError: a set has no files. Where the sets lie does not enter.
    """
    files = [file for chosen in config.sets for file in evaluation_sets.find_files(chosen, config.splits)]
    return [[file.task, file.name, file.folder.sha256(file.name)] for file in files]


def index_unit(task: IndexTask) -> dict[str, Any]:
    """Read the evaluation sets and write their index. `read` names the files; `tasks` counts examples."""
    corpus, config = folder(task.corpus), task.config
    files = [file for chosen in config.sets for file in evaluation_sets.find_files(chosen, config.splits)]
    tasks: list[str] = []  # of every example

    def texts() -> Iterator[tuple[int, str]]:
        for file in files:
            for example in evaluation_sets.read_examples(file):
                tasks.append(example.task)
                yield from ((len(tasks) - 1, text) for text in example.texts)

    index = ngram_index.build(texts(), config.ngram, config.floor)
    ngram_index.save(index, corpus, INDEX)
    begins = [number for number, name in enumerate(tasks) if number == 0 or name != tasks[number - 1]]
    corpus.write_json(EXAMPLES, [[begin, tasks[begin]] for begin in begins])
    searched = Counter(tasks[example] for example in np.unique(index.examples).tolist())
    return {
        "tasks": {
            name: {"examples": count, "too_short": count - searched[name]}
            for name, count in sorted(Counter(tasks).items())
        },
        "read": [file.where for file in files],
        "files": corpus.listed([INDEX, EXAMPLES]),
    }


def decontaminate_unit(task: DecontaminateTask) -> dict[str, Any]:
    """Search a unit's documents; write which to remove and why, what to cut from others, and who was hit by what."""
    from data_prep import tables  # brings pyarrow, which the settings above do without

    corpus, config = folder(task.corpus), task.config
    searcher = ngram_index.Searcher(ngram_index.load(corpus, INDEX), config.ngram, config.floor)
    task_of = _tasks(corpus)
    removed: list[tuple[int, str]] = []
    cuts: list[tuple[int, int, int]] = []
    hit: list[tuple[int, int, bool]] = []  # row, example, short
    for batch in tables.read_documents(corpus, task.unit):
        for document, found in searcher.find(shingles.words(batch.texts)).by_document():
            row = batch.first + document
            hit += sorted({(row, *pair) for pair in zip(found.example.tolist(), found.short.tolist(), strict=True)})
            spans = _spans_to_cut(batch.texts[document], found, config, task.min_chars)
            cuts += [(row, start, stop) for start, stop in spans]
            if not spans:
                removed.append((row, REASON + task_of(int(found.example.min()))))
    names = [_removed_name(task.unit), _cuts_name(task.unit), _hits_name(task.unit)]
    _write_table(corpus, names[0], {"row": "int64", "reason": "string"}, removed)
    _write_table(corpus, names[1], {"row": "int64", "start": "int64", "stop": "int64"}, cuts)
    _write_table(corpus, names[2], {"row": "int64", "example": "int64", "short": "bool"}, hit)
    return {
        "documents_removed": len(removed),
        "documents_cut": len({row for row, _, _ in cuts}),
        "characters_cut": sum(stop - start for _, start, stop in cuts),
        "files": corpus.listed(names),
    }


def report_unit(task: ReportTask) -> dict[str, Any]:
    """Count what was hit, by task. `by_short_rule`: hit by whole texts of less than 13 words and by nothing else."""
    corpus = folder(task.corpus)
    task_of = _tasks(corpus)
    examples: dict[int, bool] = {}  # example → hit by the short rule alone
    documents: Counter[tuple[str, bool]] = Counter()
    for unit in range(task.units):
        of_unit: dict[tuple[str, int], bool] = {}
        for row, example, short in _read_table(corpus, _hits_name(unit)):
            key = task_of(example), row
            examples[example] = examples.get(example, True) and short
            of_unit[key] = of_unit.get(key, True) and short
        documents.update((name, short) for (name, _), short in of_unit.items())
    of_examples = Counter((task_of(example), short) for example, short in examples.items())
    return {
        name: {
            "documents_hit": documents[name, False] + documents[name, True],
            "documents_hit_by_short_rule": documents[name, True],
            "examples_hit": of_examples[name, False] + of_examples[name, True],
            "examples_hit_by_short_rule": of_examples[name, True],
        }
        for name in sorted({name for _, name in corpus.read_json(EXAMPLES)})
    }


def read_removed(corpus: Folder, unit: int) -> dict[int, str]:
    """Row → reason of a unit's documents that are to be removed."""
    return dict(_read_table(corpus, _removed_name(unit)))


def read_cuts(corpus: Folder, unit: int) -> dict[int, list[Span]]:
    """Row → what `cut` is to take out of its text."""
    cuts: dict[int, list[Span]] = {}
    for row, start, stop in _read_table(corpus, _cuts_name(unit)):
        cuts.setdefault(row, []).append((start, stop))
    return cuts


def cut(text: str, spans: Sequence[Span]) -> str:
    """The text without the spans, which ascend; what is left is joined by blank lines."""
    begins, stops = [0, *(stop for _, stop in spans)], [*(start for start, _ in spans), len(text)]
    pieces = (text[begin:stop].strip() for begin, stop in zip(begins, stops, strict=True))
    return "\n\n".join(piece for piece in pieces if piece)


def cut_spans(text: str, found: Hits, margin: int) -> list[Span]:
    """The matches in one document with `margin` characters on either side, widened to white space and merged."""
    words = shingles.spans(text)
    starts = np.maximum(words[found.word, 0] - margin, 0).tolist()
    stops = np.minimum(words[found.word + found.length - 1, 1] + margin, len(text)).tolist()
    matched = _merged(sorted(zip(starts, stops, strict=True)))
    return _merged([_widened(text, *span) for span in matched])


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Ascending spans with those that touch made one."""
    merged: list[Span] = []
    for start, stop in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def _widened(text: str, start: int, stop: int) -> Span:
    while start > 0 and not text[start - 1].isspace():
        start -= 1
    while stop < len(text) and not text[stop].isspace():
        stop += 1
    return start, stop


def _spans_to_cut(text: str, found: Hits, config: Decontamination, min_chars: int) -> list[Span]:
    """What to cut; nothing when the document is to be dropped."""
    if config.policy == "drop":
        return []
    spans = cut_spans(text, found, config.cut_margin)
    return spans if len(cut(text, spans)) >= min_chars else []


def _tasks(corpus: Folder) -> Callable[[int], str]:
    """The task of an example by its number."""
    runs = corpus.read_json(EXAMPLES)
    begins = [begin for begin, _ in runs]
    return lambda example: runs[bisect.bisect_right(begins, example) - 1][1]


def _removed_name(unit: int) -> str:
    return f"{FOLDER}/removed/{unit:05d}.parquet"


def _cuts_name(unit: int) -> str:
    return f"{FOLDER}/cuts/{unit:05d}.parquet"


def _hits_name(unit: int) -> str:
    return f"{FOLDER}/hits/{unit:05d}.parquet"


def _write_table(corpus: Folder, name: str, columns: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    schema = pa.schema([(column, pa.type_for_alias(alias)) for column, alias in columns.items()])
    arrays = [pa.array(value, field.type) for value, field in zip(values, schema, strict=True)]
    with corpus.writer(name) as file:
        pq.write_table(pa.table(arrays, schema=schema), file)


def _read_table(corpus: Folder, name: str) -> Iterator[tuple[Any, ...]]:
    import pyarrow.parquet as pq

    with corpus.open(name) as file:
        table = pq.read_table(file)
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
