"""The mistakes of every model on every task, as a file a person can read: `evaluation/mistakes/MODEL-SUITE-TASK.tsv`.

One line an example that any fine-tuning got wrong, those that most got wrong first, then the most confident. Columns:
example (its number in the dev file, from 0), wrong (`2 of 5` seeds), gold, predicted (what was mostly said instead),
confidence (the mean probability it was said with; of values, the mean distance from gold; 0 where nothing was said),
and the texts. A value is
wrong where it is off by a fifth of the scale or more. Of minimal pairs there are paradigm, phenomenon, and by how many
nats the bad sentence was preferred. Tabs and line breaks of a text are blanks here.
"""

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import storage
from data_prep.errors import DataError
from pipeline import gather
from training.blimp import load_blimp
from training.protocol import TASKS
from training.squad import load_span_data
from training.tasks import load_task

Result = dict[str, Any]
Mistake = tuple[int, int, str, str, float, tuple[str, ...]]  # example, wrong, gold, predicted, confidence, texts

OFF = 0.2  # of the largest value
_HEAD = ("example", "wrong", "gold", "predicted", "confidence", "text a", "text b")
_HEADS = {
    "squad": (*_HEAD[:5], "question", "paragraph"),
    "blimp": (*_HEAD[:2], "paradigm", "phenomenon", "nats", "good", "bad"),
}


def write(evaluation: Path, rows: Sequence[Result]) -> None:
    """Write the files of these rows; of BLiMP one a network, with all paradigms."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for row in rows:
        task = "BLiMP" if row["suite"].startswith("blimp") else row["task"]
        groups.setdefault((row["run"], row["suite"], task), []).append(row)
    folder = storage.make_folder(evaluation / "mistakes")
    for (run, suite, task), own in groups.items():
        head = _HEADS.get(suite.removesuffix("_generator"), _HEAD)
        found = sorted(_mistakes(evaluation, own), key=lambda one: (-one[1], -one[4], one[0]))
        lines = ["\t".join(head), *(_text(one, _seeds(own, suite)) for one in found)]
        content = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
        storage.write_bytes(folder / f"{run}-{suite}-{task}.tsv", content)


def _seeds(rows: Sequence[Result], suite: str) -> int:
    return 1 if suite.startswith("blimp") else len(rows)


def _text(one: Mistake, seeds: int) -> str:
    example, wrong, gold, predicted, confidence, texts = one
    cells = [str(example), f"{wrong} of {seeds}", gold, predicted, f"{confidence:.3f}", *texts]
    return "\t".join(" ".join(cell.split()) for cell in cells)


def _mistakes(evaluation: Path, rows: Sequence[Result]) -> Iterable[Mistake]:
    suite = rows[0]["suite"]
    if suite == "squad":
        return _of_spans(evaluation, rows)
    return _of_pairs(evaluation, rows) if suite.startswith("blimp") else _of_classes(evaluation, rows)


def side_arrays(evaluation: Path, row: Result) -> dict[str, NDArray[Any]]:
    """label, prediction and score of a row's dev side."""
    arrays = arrays_of(evaluation, row)
    before = f"{row['task']}/" if f"{row['task']}/label" in arrays else ""
    return {name: arrays[before + name] for name in ("label", "prediction", "score")}


def arrays_of(evaluation: Path, row: Result) -> dict[str, NDArray[Any]]:
    """All arrays of a row's unit. DataError where the file is gone or broken."""
    path = evaluation / row["predictions"]
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error, evaluation, row) from None


def _unreadable(path: Path, error: Exception, evaluation: Path, row: Result) -> DataError:
    record = gather.record_of(evaluation.parent, row)
    return DataError(f"{path} is not readable ({error}); delete {record} and run `electra evaluate` again.")


def probabilities(scores_nC: NDArray[np.float32]) -> NDArray[np.float64]:
    """The softmax of logits, `[n, C]`; what is no number counts as 0."""
    logits_nC = np.nan_to_num(scores_nC.astype(np.float64), nan=0.0, posinf=1e4, neginf=-1e4)
    powers_nC = np.exp(logits_nC - logits_nC.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers_nC / powers_nC.sum(axis=1, keepdims=True)
    return shares


def _of_classes(evaluation: Path, rows: Sequence[Result]) -> Iterator[Mistake]:
    data = load_task(evaluation / rows[0]["data"])
    task = TASKS[data.suite][data.task]
    found = [side_arrays(evaluation, row) for row in rows]
    label_n = found[0]["label"]
    said_Sn = np.stack([one["prediction"] for one in found])
    if task.largest:
        sure_Sn = np.abs(said_Sn - label_n)
        wrong_Sn = sure_Sn >= OFF * task.largest
    else:
        sure_Sn = np.stack([probabilities(one["score"]).max(axis=1) for one in found])
        wrong_Sn = said_Sn != label_n
    examples = data.side(rows[0]["task"])
    for i in np.flatnonzero(wrong_Sn.any(axis=0)).tolist():
        wrong_S = wrong_Sn[:, i]
        if task.largest:
            gold, predicted = f"{label_n[i]:g}", f"{said_Sn[wrong_S, i].mean():.3f}"
        else:
            said = Counter(said_Sn[wrong_S, i].tolist()).most_common(1)[0][0]
            gold, predicted = data.classes[int(label_n[i])], data.classes[said]
        texts = (examples[i].text_a, examples[i].text_b or "")
        yield i, int(wrong_S.sum()), gold, predicted, float(sure_Sn[wrong_S, i].mean()), texts


def _of_spans(evaluation: Path, rows: Sequence[Result]) -> Iterator[Mistake]:
    data = load_span_data(evaluation / rows[0]["data"])
    said = [answers(evaluation, row) for row in rows]
    exact_Sn = np.stack([arrays_of(evaluation, row)["exact"] for row in rows])
    questions = [(question, paragraph) for paragraph in data.dev for question in paragraph.questions]
    for i, (question, paragraph) in enumerate(questions):
        wrong = [s for s in range(len(rows)) if exact_Sn[s, i] == 0]
        if wrong:
            gold = " | ".join(dict.fromkeys(answer.text for answer in question.answers)) or "(no answer)"
            predicted = Counter(said[s][i][0] for s in wrong).most_common(1)[0][0]
            sure = [said[s][i][1] for s in wrong if said[s][i][0] == predicted] if predicted else [0.0]
            predicted = predicted or "(no answer)"
            yield i, len(wrong), gold, predicted, float(np.mean(sure)), (question.text, paragraph.context)


def answers(evaluation: Path, row: Result) -> list[tuple[str, float]]:
    """What is said of each question where exact match is taken (2.0: nothing, beyond the best threshold), and the
    probability of that among the answers."""
    path = evaluation / row["answers"]
    try:
        found = [json.loads(line)["answers"] for line in path.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, evaluation, row) from None
    given = arrays_of(evaluation, row)["given"].tolist()
    return [(one[0][0], one[0][-1]) if said else ("", 0.0) for one, said in zip(found, given, strict=True)]


def _of_pairs(evaluation: Path, rows: Sequence[Result]) -> Iterator[Mistake]:
    """In place of gold, predicted and confidence: paradigm, phenomenon, nats."""
    data = load_blimp(evaluation / rows[0]["data"])
    arrays = arrays_of(evaluation, rows[0])
    for paradigm in data.paradigms:
        margins = arrays[f"{rows[0]['suite']}/{paradigm.name}/margin"]
        hits = arrays[f"{rows[0]['suite']}/{paradigm.name}/hit"]
        for i in np.flatnonzero(~hits).tolist():
            pair = paradigm.pairs[i]
            yield i, 1, paradigm.name, paradigm.term, float(-margins[i]), (pair.good, pair.bad)
