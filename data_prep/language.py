"""Which language a text is in, from a model that comes inside a Python package: nothing is downloaded.

The judgement costs the same for every document, because it looks at a bounded sample: pieces from the start, the middle
and the end. It names one language of 140 by its ISO 639 code, with a probability that is calibrated over lengths.
Rounded to two digits, the probability does not follow the last bits of one processor's arithmetic. Documents that mix
languages are not taken apart, and a text without any known feature (digits, symbols) has probability 0.01.
"""

import importlib.util
from functools import cache
from typing import Any

PIECES = 3
PIECE_CHARS = 256


def installed() -> bool:
    """Whether the package with the model is there."""
    return importlib.util.find_spec("py3langid") is not None


def known() -> frozenset[str]:
    """The codes of the languages the model can name."""
    return frozenset(_model().labels)


def identify(text: str) -> tuple[str, float]:
    """(code, probability) of the likeliest language of the sampled text."""
    code, probability = _model().classify(sample(text))
    return code, round(probability, 2)


def sample(text: str) -> str:
    """The whole of a short text; pieces from the start, the middle and the end of a longer one."""
    if len(text) <= PIECES * PIECE_CHARS:
        return text
    step = (len(text) - PIECE_CHARS) // (PIECES - 1)
    return "\n".join(text[i * step : i * step + PIECE_CHARS] for i in range(PIECES))


@cache
def _model() -> Any:
    """Loaded once a process, on the first question: it takes about half a second."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
