"""A pydantic ValidationError as one sentence: where, which key, what is wrong, and the nearest valid key.

`describe` knows the data and the model, not where the data came from: the caller gives a function from a location to
the place a person would look (`file:line`, or an override's text).
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]
Place = Callable[[Location], str]


def describe(error: ValidationError, data: Any, place: Place, model: type[BaseModel]) -> str:
    """The first problem in one sentence, unknown keys before others: they are often the cause of a missing one."""
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    sentence = _problem(problems[0], data, place, model)
    more = len(problems) - 1
    return sentence if not more else f"{sentence} (and {more} more problem{'s' if more > 1 else ''})"


def _problem(problem: ErrorDetails, data: Any, place: Place, model: type[BaseModel]) -> str:
    location, models = _locate(problem, data, model)
    where, key = place(location), ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        return f"{where}: {key}: unknown key; {_suggest(str(location[-1]), models, model)}"
    if problem["type"] == "missing":
        return f"{where}: {key}: required, but not set"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:]
    value = problem["input"]
    if isinstance(value, str | int | float | bool) and len(repr(value)) <= 60:
        message += f", not {value!r}" if message.startswith("input should be") else f" (it is {value!r})"
    return ": ".join(part for part in (where, key, message) if part)


def _locate(problem: ErrorDetails, data: Any, model: type[BaseModel]) -> tuple[Location, list[type[BaseModel]]]:
    """Pydantic's location without its union tags, and the models that could own its last key.

    Pydantic puts the tag of a discriminated union, or the name of the union member it tried, between the keys; a part
    that is not in the data is such a name, unless it is the missing key itself.
    """
    location: Location = ()
    owners: list[type[BaseModel]] = [model]
    annotations: list[Any] = [model]
    parts = problem["loc"]
    for index, part in enumerate(parts):
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        last = index == len(parts) - 1
        if not inside and not (last and problem["type"] == "missing"):
            continue
        owners = [owner for one in annotations for owner in _models(one, data)]
        annotations = [inner for one in annotations for inner in _inner(one, part, data)]
        location = (*location, part)
        data = None if not inside else data[part]
    return location, owners


def _models(annotation: Any, data: Any) -> Iterator[type[BaseModel]]:
    """The settings classes `annotation` admits, without those whose tag (a Literal field) the data contradicts."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        tags = {name: get_args(f.annotation) for name, f in fields if get_origin(f.annotation) is Literal}
        given = data if isinstance(data, dict) else {}
        if len(tags) == 0 or all(given.get(name, values[0]) in values for name, values in tags.items()):
            yield annotation
        return
    if get_origin(annotation) in (Union, UnionType) or hasattr(annotation, "__metadata__"):
        for one in get_args(annotation):
            yield from _models(one, data)


def _inner(annotation: Any, part: str | int, data: Any) -> Iterator[Any]:
    """What stands under `part` in a value of type `annotation`."""
    for owner in _models(annotation, data):
        if part in owner.model_fields:
            yield owner.model_fields[str(part)].annotation
    origin = get_origin(annotation)
    if origin in (Union, UnionType) or hasattr(annotation, "__metadata__"):
        for one in get_args(annotation):
            if not (isinstance(one, type) and issubclass(one, BaseModel)):
                yield from _inner(one, part, data)
    elif origin in (list, tuple, Sequence):
        yield get_args(annotation)[0]
    elif origin is dict:
        yield get_args(annotation)[1]


def _suggest(key: str, owners: list[type[BaseModel]], root: type[BaseModel]) -> str:
    names = sorted({name for owner in owners for name in owner.model_fields})
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    elsewhere = [path for path in _paths(root, "") if path.rsplit(".", 1)[-1] == key]
    if elsewhere:
        return f"did you mean '{elsewhere[0]}'?"
    return f"known here: {', '.join(names)}"


def _paths(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}"
        for inner in _models(info.annotation, None):
            yield from _paths(inner, f"{prefix}{name}.")
