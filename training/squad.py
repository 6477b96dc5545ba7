"""SQuAD 1.1 and 2.0: the reader, and a task's data as one file that every fine-tuning reads.

`load_squad(DIR, version)` reads `train-v<version>.json` and `dev-v<version>.json` in the format of Rajpurkar et al.
(2016, 2018); where only `….subset.json` is there it is read instead, and the data says `subset`. Guarantees: every
answer stands in its paragraph at the character the file says (offsets count Unicode characters), question ids are
unique, texts are whole Unicode, and in 2.0 a question has answers exactly when it is not `is_impossible`. Anything else
is an error that names the file and, where one of them is at fault, article and question. Text is kept as it is: nothing
is stripped, folded or normalised. `plausible_answers` of 2.0 are not read.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import DataError
from training.task_files import TaskFile
from training.tasks import Task

Version = Literal["1.1", "2.0"]

# the paper reports 2.0 at the threshold that suits dev best (google-research/electra, finetune/qa)
TASKS: dict[str, Task] = {
    "SQuAD1.1": Task(suite="squad", name="SQuAD1.1", metrics=("f1", "exact"), in_mean=False),
    "SQuAD2.0": Task(suite="squad", name="SQuAD2.0", metrics=("best_f1", "best_exact", "f1", "exact"), in_mean=False),
}


@dataclass(frozen=True, slots=True)
class Gold:
    """An answer as annotated: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one paragraph; without answers it has none there (2.0 only)."""

    id: str
    text: str
    answers: tuple[Gold, ...]

    @property
    def impossible(self) -> bool:
        """Whether the paragraph does not answer it."""
        return not self.answers


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of an article, with its questions."""

    article: str
    context: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanData(TaskFile):
    """The paragraphs of one version. `subset` is true when either side is a declared part of the official split."""

    version: Version
    train: list[Paragraph]
    dev: list[Paragraph]
    subset: bool = False

    @property
    def task(self) -> Task:
        """The task that this is the data of."""
        return TASKS[f"SQuAD{self.version}"]

    def lines(self) -> Iterator[str]:
        """The JSON lines of the file, header first: the same data always gives the same bytes."""
        yield json.dumps({"suite": "squad", "version": self.version, "subset": self.subset})
        for split, paragraphs in (("train", self.train), ("dev", self.dev)):
            for p in paragraphs:
                questions = [[q.id, q.text, [[a.text, a.start] for a in q.answers]] for q in p.questions]
                yield json.dumps([split, p.article, p.context, questions], ensure_ascii=False)


def load_span_data(path: Path) -> SpanData:
    """What `SpanData.save` wrote; DataError when the file is missing or is not one."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            header = json.loads(next(file))
            sides: dict[str, list[Paragraph]] = {"train": [], "dev": []}
            for line in file:
                split, article, context, rows = json.loads(line)
                questions = tuple(Question(i, text, tuple(Gold(*a) for a in answers)) for i, text, answers in rows)
                sides[split].append(Paragraph(article, context, questions))
        return SpanData(version=header["version"], subset=header["subset"], **sides)
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a readable task file ({error}); delete it and evaluate again.") from error


def load_squad(folder: Path, version: Version) -> SpanData:
    """Both sides of a version; DataError where a file is missing, is not SQuAD, or names answers that are not there."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: it must hold train-v{version}.json and dev-v{version}.json.")
    train, train_subset = _find(folder, f"train-v{version}")
    dev, dev_subset = _find(folder, f"dev-v{version}")
    return SpanData(
        version=version,
        train=read_squad(train, version),
        dev=read_squad(dev, version),
        subset=train_subset or dev_subset,
    )


def _find(folder: Path, stem: str) -> tuple[Path, bool]:
    """The file of a split, and whether it is a declared subset of it."""
    for path, subset in ((folder / f"{stem}.json", False), (folder / f"{stem}.subset.json", True)):
        if path.is_file():
            return path, subset
    raise DataError(f"{folder} has neither {stem}.json nor {stem}.subset.json: put the SQuAD file there.")


def read_squad(path: Path, version: Version) -> list[Paragraph]:
    """The paragraphs of one file in file order. DataError as `load_squad`."""
    seen: set[str] = set()
    paragraphs = []
    try:
        document = json.loads(path.read_bytes().decode("utf-8-sig"))
        _refuse_other_version(path, document, version)
        for article in document["data"]:
            title = _text(str(article.get("title", "")))
            for paragraph in article["paragraphs"]:
                paragraphs.append(_paragraph(path, title, paragraph, version, seen))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        kind = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is not a SQuAD {version} file ({kind}): put the official file there.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): check that it is a file of yours.") from error
    if not seen:
        raise DataError(f"{path} holds no questions: put the official SQuAD {version} file there.")
    return paragraphs


def _refuse_other_version(path: Path, document: Any, version: Version) -> None:
    """A 2.0 file read as 1.1 would lose its unanswerable questions without a word."""
    said = str(document.get("version", version)).removeprefix("v")
    if said != version:
        raise DataError(f"{path} says that it is SQuAD version {said}, not {version}: put the right file there.")


def _paragraph(path: Path, title: str, raw: dict[str, Any], version: Version, seen: set[str]) -> Paragraph:
    context = _text(raw["context"])
    questions = []
    for entry in raw["qas"]:
        question = Question(
            _text(str(entry["id"])),
            _text(entry["question"]),
            tuple(Gold(answer["text"], answer["answer_start"]) for answer in entry["answers"]),
        )
        if fault := _fault(question, context, entry.get("is_impossible", False), version, seen):
            raise DataError(f"{path}: question {question.id!r} of article {title!r} {fault}: correct the file.")
        seen.add(question.id)
        questions.append(question)
    return Paragraph(title, context, tuple(questions))


def _text(value: Any) -> str:
    """A text that can be kept: JSON may spell half of a surrogate pair, which no file can hold."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()
    return value


def _fault(question: Question, context: str, said_impossible: bool, version: Version, seen: set[str]) -> str | None:
    """What is wrong with a question, to follow its name; None if nothing is."""
    if question.id in seen:
        return "stands there twice"
    if version == "1.1" and question.impossible:
        return "has no answer"
    if version == "2.0" and said_impossible != question.impossible:
        return "is_impossible but has an answer" if said_impossible else "has no answer but is not is_impossible"
    for answer in question.answers:
        end = answer.start + len(answer.text)
        if not 0 <= answer.start < end <= len(context):
            return f"has answer {answer.text!r} at characters {answer.start} to {end} of a text of {len(context)}"
        if context[answer.start : end] != answer.text:
            return f"has answer {answer.text!r} where the text says {context[answer.start : end]!r}"
    return None
