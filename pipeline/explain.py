"""A pydantic ValidationError as one sentence: where, which key, what is wrong, and the nearest valid key.

`describe` knows the data and the model, not where the data came from: the caller gives a function from a location to
the place a person would look (`file:line`, or an override's text).
"""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]
Place = Callable[[Location], str]
Models = list[type[BaseModel]]
_TAGS = ("union_tag_invalid", "union_tag_not_found")
_MAPPINGS = ("dict_type", "model_type", "model_attributes_type")  # pydantic speaks of dictionaries, objects, instances


def describe(error: ValidationError, data: Any, place: Place, model: type[BaseModel]) -> str:
    """The first problem in one sentence, unknown keys before others: they are often the cause of a missing one."""
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    sentence = _problem(problems[0], data, place, model)
    more = len(problems) - 1
    return sentence if not more else f"{sentence} (and {more} more problem{'s' if more > 1 else ''})"


def _problem(problem: ErrorDetails, data: Any, place: Place, model: type[BaseModel]) -> str:
    location, owners, others = _locate(problem, data, model)
    if "key" in problem.get("ctx", {}):  # a check of ours that is about one key of the section
        location = (*location, problem["ctx"]["key"])
    where, key = place(location), ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        return f"{where}: {key}: unknown key; {_suggest(location, owners, others, model)}"
    if problem["type"] == "missing":
        return f"{where}: {key}: required, but not set"
    if problem["type"] in _TAGS and isinstance(problem["input"], dict):
        return _tag_problem(problem, location, place)
    if problem["type"] in (*_TAGS, *_MAPPINGS):
        problem["msg"] = "Input should be a mapping"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:]
    value = problem["input"]
    if isinstance(value, str | int | float | bool) and len(repr(value)) <= 60:
        message += f", not {value!r}" if message.startswith("input should be") else f" (it is {value!r})"
    if problem["type"] == "literal_error":
        message += _nearest(str(value), problem["ctx"]["expected"])
    return ": ".join(part for part in (where, key, message) if part)


def _tag_problem(problem: ErrorDetails, location: Location, place: Place) -> str:
    """What is wrong with the key that says which member of a union is meant, such as `kind: docs`."""
    value, context, key = problem["input"], problem["ctx"], ".".join(map(str, location))
    if problem["type"] == "union_tag_not_found":
        return f"{place(location)}: {key}.{context['discriminator'].strip(chr(39))}: required, but not set"
    tag, expected = context["tag"], context["expected_tags"]
    name = next(name for name, given in value.items() if str(given) == tag)
    first, _, last = expected.rpartition(", ")
    choices = f"{first} or {last}" if first else last
    given = "null" if value[name] is None else repr(tag)
    return f"{place((*location, name))}: {key}.{name}: input should be {choices}, not {given}{_nearest(tag, expected)}"


def _nearest(value: str, quoted: str) -> str:
    """A question where one of the choices, quoted in a list, looks much like the value."""
    close = difflib.get_close_matches(value, re.findall(r"'([^']*)'", quoted), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _locate(problem: ErrorDetails, data: Any, model: type[BaseModel]) -> tuple[Location, Models, Models]:
    """Pydantic's location without its union tags, the models that could own its last key, and those that could if the
    data named another member of a union.

    Pydantic puts the tag of a discriminated union, or the name of the union member it tried, between the keys; a part
    that is not in the data is such a name, unless it is the missing key itself.
    """
    location: Location = ()
    owners: Models = [model]
    others: Models = []
    annotations: list[Any] = [model]
    parts = problem["loc"]
    for index, part in enumerate(parts):
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        last = index == len(parts) - 1
        if not inside and not (last and problem["type"] == "missing"):
            continue
        owners = [owner for one in annotations for owner in _models(one, data)]
        others = [other for one in annotations for other in _models(one, None) if other not in owners]
        annotations = [inner for one in annotations for inner in _inner(one, part, data)]
        location = (*location, part)
        data = None if not inside else data[part]
    return location, owners, others


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


def _suggest(location: Location, owners: Models, others: Models, root: type[BaseModel]) -> str:
    """What a key was meant to be: one in a section below (`generator_width` for `generator.width`), the same of another
    member of the union, the same anywhere, or one here that looks much like it."""
    key, above = str(location[-1]), "".join(f"{part}." for part in location[:-1])
    names = sorted({name for owner in owners for name in (*owner.model_fields, *getattr(owner, "shorthands", ()))})
    below = [path for owner in owners for path in _paths(owner, "") if "." in path]
    known = f"known here: {', '.join(names)}"
    inside = [
        *(f"{above}{path}" for path in below if path.replace(".", "_") == key),
        *(f"{above}{path}" for path in below if path.rsplit(".", 1)[-1] == key),
    ]
    having = dict.fromkeys(tag for other in others if key in other.model_fields for tag in _tags(other))
    if having and not inside:
        return f"it belongs to {', '.join(having)}; {known}"
    found = [
        *inside,
        *(path for path in _paths(root, "") if path.rsplit(".", 1)[-1] == key),
        *difflib.get_close_matches(key, names, n=1, cutoff=0.6),
    ]
    return f"did you mean '{found[0]}'?" if found else known


def _tags(model: type[BaseModel]) -> Iterator[str]:
    """What makes it this member of a union, as in `kind: docs`."""
    for name, info in model.model_fields.items():
        values = get_args(info.annotation)
        if get_origin(info.annotation) is Literal and len(values) == 1:
            yield f"{name}: {values[0]}"


def _paths(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}"
        for inner in _models(info.annotation, None):
            yield from _paths(inner, f"{prefix}{name}.")
