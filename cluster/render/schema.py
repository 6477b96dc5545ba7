"""A manifest against the published field names and types (`cluster.render.fields`): unknown, missing and mistyped.

Kubernetes drops a field that it does not know, or refuses the whole, long after the command has ended; here it is named
at once, with the nearest field that exists. Guarantees: a document of the kinds RayJob, RayCluster and ConfigMap is
looked through completely, as deep as the fields are listed; every problem is one sentence that begins with its path.
Not here: what a schema cannot say (`cluster.render.rules`).
"""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from cluster.render.fields import KUBERNETES, RAY

_FIELDS = {
    entry: {name: kind for name, _, kind in (field.partition(":") for field in text.split())}
    for entry, text in {**RAY, **KUBERNETES}.items()
}
KINDS = ("RayJob", "RayCluster", "ConfigMap")
_QUANTITY = re.compile(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$")
_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def problems(document: Any) -> list[str]:
    """What is wrong with one document."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in KINDS:
        return [f"kind: {kind!r} is none of {', '.join(KINDS)}"]
    return list(_entry(document, kind, ""))


def _entry(value: Any, entry: str, path: str) -> Iterator[str]:
    """A mapping with the fields of a listed entry."""
    if not isinstance(value, dict):
        yield f"{path or entry}: must be a mapping with the fields of {entry}, not {value!r}"
        return
    fields = {name.removesuffix("!"): kind for name, kind in _FIELDS[entry].items()}
    for name in _FIELDS[entry]:
        if name.endswith("!") and value.get(name[:-1]) is None:
            yield f"{_under(path, name[:-1])}: required, but not set"
    for name, below in value.items():
        if name not in fields:
            close = difflib.get_close_matches(str(name), fields, n=1)
            meant = f"did you mean '{close[0]}'?" if close else f"{entry} has {', '.join(sorted(fields))}"
            yield f"{_under(path, name)}: unknown field; {meant}"
        else:
            yield from _value(below, fields[name], _under(path, name))


def _value(value: Any, kind: str, path: str) -> Iterator[str]:
    if kind in _FIELDS:
        yield from _entry(value, kind, path)
    elif kind.startswith("["):
        yield from _items(value, kind[1:-1], path)
    elif kind in ("map", "quantities"):
        yield from _map(value, "string" if kind == "map" else "quantity", path)
    elif kind.startswith("="):
        if value not in kind[1:].split("|"):
            yield f"{path}: must be {' or '.join(kind[1:].split('|'))}, not {value!r}"
    elif kind != "any" and not _is(value, kind):
        yield f"{path}: must be of type {kind}, not {value!r}"


def _items(value: Any, kind: str, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: must be a list, not {value!r}"
        return
    for number, item in enumerate(value):
        yield from _value(item, kind, f"{path}[{number}]")


def _map(value: Any, kind: str, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: must be a mapping, not {value!r}"
        return
    for name, item in value.items():
        if not isinstance(name, str):
            yield f"{path}: the key {name!r} must be a string; quote it"
        yield from _value(item, kind, _under(path, name))


def _is(value: Any, kind: str) -> bool:
    if kind == "quantity":
        return _is(value, "integer") or (isinstance(value, str) and _QUANTITY.match(value) is not None)
    return isinstance(value, _SCALARS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _under(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)
