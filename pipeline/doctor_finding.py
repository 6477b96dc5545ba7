"""One line of `electra doctor`: what was looked at, what was found, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An error stands in the way of a run; a warning may. Both say the way out."""

    check: str
    state: State
    said: str
    remedy: str | None = None


def ok(check: str, said: str) -> Finding:
    return Finding(check=check, state="ok", said=said)


def warning(check: str, said: str, remedy: str) -> Finding:
    return Finding(check=check, state="warning", said=said, remedy=remedy)


def error(check: str, said: str, remedy: str) -> Finding:
    return Finding(check=check, state="error", said=said, remedy=remedy)
