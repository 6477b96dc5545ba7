"""YAML experiment files and `key=value` overrides into frozen settings, with errors that say where and what was meant.

Guarantees: only plain YAML data is read (`SafeLoader`, no tags), numbers are numbers (`1e-3` is a float, which YAML 1.1
reads as a string) and finite, `yes`/`no`/`on` stay strings, a repeated key is refused, and every mistake is one
`ConfigError` that names file and line (or the override), the key, and the nearest valid key.
It does not know what an experiment is (`pipeline.experiment`) nor who owns which section.
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from data_prep.errors import ConfigError
from data_prep.redact import is_clean, redact, redacted
from data_prep.settings import Settings
from pipeline.explain import Location, describe

S = TypeVar("S", bound=Settings)
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's idea of booleans, numbers and null, and without 1.1's dates and sexagesimals."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own attribute)


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would read as something else than the text it is."""


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """PyYAML reads 010 as octal 8; in an experiment file it is a ten with a zero before it."""
    text = node.value
    try:
        return int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:  # an underscore out of place, or more digits than Python reads
        problem = f"'{text[:20]}{'…' if len(text) > 20 else ''}' is no integer that can be read"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


@dataclass(slots=True)
class Document:
    """Plain data, and for each location in it the place a person would look: `file:line` or the override's text."""

    path: Path
    data: Any = None
    places: dict[Location, str] = field(default_factory=dict)

    def place(self, location: Location) -> str:
        """The nearest known place at or above `location`."""
        while location and location not in self.places:
            location = location[:-1]
        return self.places.get(location, str(self.path))


def load(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    model: type[S] = Settings,  # type: ignore[assignment]
) -> S:
    """Read the YAML file `path` (None: nothing), apply `a.b.0.c=value` overrides in order, and validate into `model`.

    Raises ConfigError with one sentence for everything that can be wrong with any of the three.
    """
    return validated(document_of(path, overrides), model)


def document_of(path: str | Path | None, overrides: Sequence[str] = ()) -> Document:
    """The file with its overrides as plain data, not validated, and where everything in it was said. ConfigError as
    `load`."""
    document = Document(Path("the command line"), {}) if path is None else _read(Path(path))
    for override in overrides:
        _override(document, override)
    _refuse_infinite(document)
    _refuse_secrets(document)
    return document


def validated(document: Document, model: type[S]) -> S:
    """The settings that a document says. ConfigError as `load`."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(describe(error, document.data, document.place, model)) from None


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file as plain data, not validated. ConfigError as `load`."""
    found: dict[str, Any] = _read(path).data
    return found


def dump(settings: Settings) -> str:
    """The YAML text of `settings`, every default spelled out; `load` reads it back to an equal object."""
    return yaml.dump(settings.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Document:
    if path.is_dir():
        raise ConfigError(
            f"{path}: is a directory; name the YAML file of an experiment, such as configs/quickstart.yaml"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    document = Document(path)
    document.data = _parse(text, document)
    if not isinstance(document.data, dict):
        raise ConfigError(f"{path}: holds no 'key: value' mapping at its top level; see configs/quickstart.yaml")
    return document


def _similar_file(path: Path) -> str:
    siblings = [other.name for other in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, siblings, n=1)
    return f"; did you mean '{path.parent / close[0]}'?" if close else ""


def _parse(text: str, document: Document) -> Any:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _plain(loader, node, (), document, ())
    except RecursionError:
        raise ConfigError(f"{document.path}: is nested too deeply to be a configuration") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = error.problem or error.context or "not valid YAML"
        if "'\\t'" in problem:
            problem = "a tab; YAML indents with spaces only"
        raise ConfigError(f"{document.path}{line}: {problem}") from None
    except yaml.YAMLError as error:  # characters YAML does not allow carry no mark
        raise ConfigError(f"{document.path}: {' '.join(str(error).split())}") from None


def _plain(
    loader: _Loader, node: yaml.Node, location: Location, document: Document, above: tuple[yaml.Node, ...]
) -> Any:
    """The node as dict, list or scalar; records its line. Tags, repeated keys and self-references are errors."""
    line = f"{document.path}:{node.start_mark.line + 1}"
    document.places.setdefault(location, line)
    if node in above:
        raise ConfigError(f"{line}: the alias contains itself")
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_object(node)
    if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        raise ConfigError(f"{line}: the tag '{node.tag}' is not allowed; write plain mappings, lists and values")
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(loader, item, (*location, index), document, (*above, node)) for index, item in enumerate(node.value)
        ]
    assert isinstance(node, yaml.MappingNode)
    _refuse_duplicates(node, document.path)
    below = (*above, node)
    result: dict[str, Any] = {}
    for key, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):  # '<<' first: own keys win
        if key.tag == _MERGE:
            for merged in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                result |= _merged(_plain(loader, merged, location, document, below), line)
            continue
        document.places[(*location, key.value)] = f"{document.path}:{key.start_mark.line + 1}"
        result[key.value] = _plain(loader, value, (*location, key.value), document, below)
    return result


def _refuse_infinite(document: Document) -> None:
    """No setting means anything as infinity or not-a-number, wherever its own section forgets to say so."""
    waiting: list[tuple[Location, Any]] = [((), document.data)]
    while waiting:
        location, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [((*location, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [((*location, index), item) for index, item in enumerate(value)]
        elif isinstance(value, int | float) and not _is_finite(value):
            key = ".".join(map(str, location))
            shown = value if isinstance(value, float) else f"one of {len(str(value))} digits"
            raise ConfigError(f"{document.place(location)}: {key}: input should be a finite number, not {shown}")


def _refuse_secrets(document: Document) -> None:
    """A configuration is stored, sent, and read by all who see a run: no secret may stand in it."""
    waiting: list[tuple[Location, Any]] = [((), document.data)]
    while waiting:
        location, value = waiting.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            below = (*location, key)
            if isinstance(item, dict | list):
                waiting.append((below, item))
            if not is_clean(str(key)) or (not isinstance(item, dict | list) and redacted({key: item}) != {key: item}):
                raise ConfigError(
                    f"{redact(document.place(below))}: the value of {redact('.'.join(map(str, below)))} looks like a "
                    "secret, and configurations are stored and sent; set it as an environment variable (HF_TOKEN, "
                    "MLFLOW_TRACKING_PASSWORD, AWS_SECRET_ACCESS_KEY, …), and for other machines name that variable in "
                    "cluster.submit.secrets"
                )


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


def _merged(value: Any, line: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{line}: '<<' merges mappings only")
    return value


def _refuse_duplicates(node: yaml.MappingNode, path: Path) -> None:
    first: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{path}:{line}: a key must be a plain word")
        if key.value in first:
            raise ConfigError(f"{path}:{line}: '{key.value}' is set twice, first on line {first[key.value]}; keep one")
        first[key.value] = line


# --- overrides --------------------------------------------------------------------------------------------------------


def _override(document: Document, override: str) -> None:
    """Set one dotted key. Mappings on the way are made; list items must exist (lists do not grow by index)."""
    place = f"argument '{override}'"
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"{place}: an override reads section.key=value, as in training.global_batch=64")
    value_document = Document(Path(place))
    value = _parse(text, value_document)
    target: Any = document.data
    location: Location = ()
    for depth, part in enumerate(parts):
        step = _step(target, part, place, parts[:depth])
        location = (*location, step)
        if depth == len(parts) - 1:
            target[step] = value
        elif isinstance(target, dict) and target.get(step) is None:
            target[step] = {}
            document.places[location] = place
        target = target[step]
    for known in [known for known in document.places if known[: len(location)] == location]:
        del document.places[known]
    document.places[location] = place


def _step(target: Any, part: str, place: str, before: list[str]) -> str | int:
    where = ".".join(before) or "the file"
    if isinstance(target, dict):
        return part
    if not isinstance(target, list):
        raise ConfigError(f"{place}: '{where}' is a single value and has no '{part}' in it")
    if not part.isdecimal() or int(part) >= len(target):
        have = f"0 to {len(target) - 1}" if target else "none, it is empty"
        raise ConfigError(f"{place}: '{where}' is a list; '{part}' is not one of its positions ({have})")
    return int(part)
