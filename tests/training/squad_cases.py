"""SQuAD as tests need it: paragraphs by hand, a toy version that a tiny body learns, and where the real files lie."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.squad import Gold, Paragraph, Question, SpanData, Version

REAL = os.environ.get("ELECTRA_TEST_DATA") or None  # set but empty: the Makefile found no such folder
needs_real = pytest.mark.skipif(REAL is None, reason="ELECTRA_TEST_DATA names no folder with the real files (squad/…)")

WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(6)]
KINDS, METALS = ["old", "pure"], ["gold", "silver", "copper"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "cls", "sep", "mask", "pad", "##s", "."]
VOCABULARY += ["what", "metal", *KINDS, *METALS, *WORDS]


def squad_folder() -> Path:
    """The folder of the real files; for tests marked `needs_real`."""
    return Path(str(REAL)) / "squad"


def paragraph(context: str, *answers: str | None, article: str = "Metals", key: str = "q") -> Paragraph:
    """One question for every answer, which is found in the context; None: impossible."""
    return Paragraph(
        article,
        context,
        tuple(
            Question(f"{key}{i}", "What metal?", () if text is None else (Gold(text, context.index(text)),))
            for i, text in enumerate(answers)
        ),
    )


def toy(count: int, seed: int, *, unanswerable: bool, longest: int = 24) -> list[Paragraph]:
    """The answer is the one metal of the text and its kind, at any place. With `unanswerable` every third text has
    none."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        words = list(rng.choice(WORDS, int(rng.integers(3, longest))))
        metal = None
        if not (unanswerable and i % 3 == 0):
            metal = f"{rng.choice(KINDS)} {rng.choice(METALS)}"
            words.insert(int(rng.integers(0, len(words) + 1)), metal)
        out.append(paragraph(" ".join(words), metal, key=f"{seed}-{i}-"))
    return out


def toy_data(version: Version, train: int = 200, dev: int = 60, longest: int = 24) -> SpanData:
    """Both sides of the toy."""
    unanswerable = version == "2.0"
    return SpanData(
        version=version,
        train=toy(train, 0, unanswerable=unanswerable, longest=longest),
        dev=toy(dev, 1, unanswerable=unanswerable, longest=longest),
    )


def document(context: str, *questions: dict[str, Any], version: str = "v2.0") -> str:
    """A SQuAD file of one paragraph."""
    article = {"title": "Ore", "paragraphs": [{"context": context, "qas": questions}]}
    return json.dumps({"version": version, "data": [article]})


def entry(name: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    """A question of a SQuAD file."""
    return {"id": name, "question": "Which?", "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}
