"""Lines that are written for people, as text or, for programs that collect logs, as JSON objects.

ELECTRA_LOG_FORMAT=json chooses the latter: a variable, since every process of a run, wherever it was started, has to
agree, and those that others start take no options. An object has `time` (UTC), `level` (info, warning, error), `run`,
`rank`, `step` and `message`, null where a line is of none, and what else is to be said. Secrets are taken out.
"""

import json
import os
from datetime import UTC, datetime
from typing import Any, Literal

from data_prep.errors import ConfigError
from data_prep.redact import redact, redacted

FORMAT = "ELECTRA_LOG_FORMAT"
_FORMATS = ("text", "json")

Level = Literal["info", "warning", "error"]


def in_json() -> bool:
    """Whether lines are to be objects. ConfigError for a format that there is not."""
    chosen = os.environ.get(FORMAT) or "text"
    if chosen not in _FORMATS:
        raise ConfigError(f"{FORMAT}={chosen}: no such format; there are {', '.join(_FORMATS)}")
    return chosen == "json"


def environment() -> dict[str, str]:
    """What a process on another machine is to be told."""
    return {FORMAT: os.environ[FORMAT]} if FORMAT in os.environ else {}


def line(
    message: str, *, level: Level = "info", run: str | None = None, step: int | None = None, rank: int | None = None,
    **more: Any,
) -> str:  # fmt: skip
    """The object of one line. Without a rank, that of the environment: launchers set RANK. A message that is such an
    object itself, as of a job that is followed, stays what it is."""
    if _is_line(message):
        return redact(message)
    if rank is None and os.environ.get("RANK", "").isdecimal():
        rank = int(os.environ["RANK"])
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"time": now, "level": level, "run": run, "rank": rank, "step": step, "message": redact(message)}
    return json.dumps({**record, **redacted(more)}, ensure_ascii=False)


def _is_line(text: str) -> bool:
    if not text.startswith('{"time": "'):
        return False
    try:
        return json.loads(text).keys() >= {"time", "level", "message"}
    except ValueError:
        return False
