"""What `electra config` tells of experiment files: every value with where it came from, the schema, what differs.

A value comes from a line of the file, from an argument of the command line, or, where neither says anything of it, from
its default (which may depend on others: a protocol's numbers on its name). Reads files, starts nothing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from data_prep.errors import ConfigError, ElectraError
from data_prep.redact import redact, redacted
from data_prep.settings import Settings
from pipeline import config as yaml_config
from pipeline.config import Document
from pipeline.console import Console
from pipeline.experiment import Experiment
from pipeline.explain import Location
from pipeline.folder import changes
from pipeline.gather import CONFIG_NAME
from pipeline.story_words import plural

DEFAULT = "default"
_WORDS = ("size", "name")  # keys whose words stand for numbers: of a model, of a protocol


@dataclass(frozen=True, slots=True)
class Read:
    """An experiment and the document it was read from."""

    document: Document
    experiment: Experiment

    @property
    def tree(self) -> Any:
        """Every value, defaults spelled out."""
        return self.experiment.model_dump(mode="json")


def read(target: Path, overrides: Sequence[str] = ()) -> Read:
    """The experiment of a file, or of the folder of an earlier one. ConfigError for whatever is wrong with it."""
    inside = target / CONFIG_NAME
    document = yaml_config.document_of(inside if inside.exists() else target, overrides)
    return Read(document, yaml_config.validated(document, Experiment))


def origin(found: Read, location: Location) -> str:
    """Where the value at a location of the experiment was said: `file.yaml:12`, `argument 'a.b=1'`, or `default`."""
    if not _is_set(found, location):
        return DEFAULT
    return redact(found.document.place(_said(found.document.data, location)))


def _is_set(found: Read, location: Location) -> bool:
    value: Any = found.experiment
    for part in location:
        if isinstance(value, Settings):
            if part not in value.model_fields_set:
                return False
            value = getattr(value, str(part))
        else:
            value = value[part]
    return True


def _said(data: Any, location: Location) -> Location:
    """The location itself, or that of the word it follows from, as `model.num_layers` from `model.size`."""
    for depth, part in enumerate(location):
        if isinstance(data, dict) and part not in data:
            return (*location[:depth], *[word for word in _WORDS if word in data][:1])
        if not isinstance(data, dict | list):
            return location[:depth]
        data = data[part]  # type: ignore[index]
    return location


# --- show -------------------------------------------------------------------------------------------------------------


def show(found: Read, *, origins: bool) -> str:
    """The experiment as YAML that reads back to the same; with a comment on where each value came from."""
    text = redact(yaml_config.dump(found.experiment)).rstrip()
    return _annotated(text, found) if origins else text


def _annotated(text: str, found: Read) -> str:
    lines = text.splitlines()
    root = yaml.compose(text, yaml.SafeLoader)
    comments = {node.end_mark.line: origin(found, location) for location, node in _leaves(root, ())}
    width = min(60, max(len(line) for line in lines))
    return "\n".join(
        f"{line.ljust(width)}  # {comments[number]}" if number in comments else line
        for number, line in enumerate(lines)
    )


def _leaves(node: Any, location: Location) -> Iterator[tuple[Location, yaml.Node]]:
    """Values that stand on a line of their own: scalars, and what is empty."""
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, value in node.value:
            yield from _leaves(value, (*location, key.value))
    elif isinstance(node, yaml.SequenceNode) and node.value:
        for index, value in enumerate(node.value):
            yield from _leaves(value, (*location, index))
    else:
        yield location, node


def as_json(found: Read) -> dict[str, Any]:
    """The tree, and the origin of each value by its dotted key."""
    tree = redacted(found.tree)
    return {"config": tree, "origins": {key: origin(found, place) for key, place, _ in flat(tree)}}


def flat(tree: Any, location: Location = ()) -> Iterator[tuple[str, Location, Any]]:
    """Dotted key, location and value of every value in plain data; what is empty is a value."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    for key, value in items:
        yield from flat(value, (*location, key))
    if not items:
        yield ".".join(map(str, location)), location, tree


# --- schema -----------------------------------------------------------------------------------------------------------


def schema(key: str | None) -> dict[str, Any]:
    """The JSON schema of experiment files, or of the section that a dotted key names. ConfigError where there is no
    such section."""
    whole = Experiment.model_json_schema()
    if key is None:
        return whole
    found, definitions = whole, whole["$defs"]
    for part in [part for part in key.split(".") if not part.isdecimal()]:  # items of a list are alike
        known = {name: one for option in _options(found, definitions) for name, one in _below(option).items()}
        if part not in known:
            raise ConfigError(f"{key}: no key '{part}' there; known: {', '.join(known) or 'none, it is a value'}")
        found = known[part]
    used = {name: definitions[name] for name in sorted(_named(found, definitions))}
    return {**found, **({"$defs": used} if used else {})}


def _options(one: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What may stand there, references followed, members of unions and items of lists one by one."""
    if "$ref" in one:
        yield from _options(definitions[one["$ref"].rpartition("/")[2]], definitions)
    elif "properties" in one:
        yield one
    elif members := one.get("anyOf") or one.get("oneOf") or one.get("allOf"):
        for member in members:
            yield from _options(member, definitions)
    elif "items" in one:
        yield from _options(one["items"], definitions)
    else:
        yield one


def _below(one: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = one.get("properties", {})
    return found


def _named(one: Any, definitions: dict[str, Any]) -> set[str]:
    """Names of all definitions that a piece of schema needs."""
    names: set[str] = set()
    waiting = [one]
    while waiting:
        piece = waiting.pop()
        if isinstance(piece, dict):
            name = str(piece["$ref"]).rpartition("/")[2] if isinstance(piece.get("$ref"), str) else None
            if name is not None and name not in names:
                names.add(name)
                waiting.append(definitions[name])
            waiting += piece.values()
        elif isinstance(piece, list):
            waiting += piece
    return names


# --- diff -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key with two values (None: not there), and where each was said."""

    key: str
    first: Any
    second: Any
    first_from: str
    second_from: str


def differences(first: Read, second: Read) -> list[Difference]:
    """Every value that differs, in the order of the first file's sections."""
    left = {key: (place, value) for key, place, value in flat(redacted(first.tree))}
    right = {key: (place, value) for key, place, value in flat(redacted(second.tree))}
    absent = ((), None)
    return [
        Difference(
            key=key,
            first=left.get(key, absent)[1],
            second=right.get(key, absent)[1],
            first_from=origin(first, left[key][0]) if key in left else "–",
            second_from=origin(second, right[key][0]) if key in right else "–",
        )
        for key in dict.fromkeys([*left, *right])
        if left.get(key, absent)[1] != right.get(key, absent)[1]
    ]


def diff(first: Read, second: Read, console: Console) -> dict[str, Any]:
    """Tell the differences, and whether the second experiment would go on with the first one's results."""
    found, bound = differences(first, second), changes(first.experiment, second.experiment)
    _tell(found, bound, console)
    return {"differences": [asdict(one) for one in found], "continues": not bound, "changed": bound}


def _tell(found: Sequence[Difference], bound: Sequence[str], console: Console) -> None:
    if not found:
        console.say("no value differs")
        return
    rows = [[one.key, _value(one.first), one.first_from, _value(one.second), one.second_from] for one in found]
    console.table(f"{plural(len(found), 'value')} differ", ["key", "first", "from", "second", "from"], rows)
    if bound:
        console.say(f"another experiment, by {', '.join(bound)}: the second does not go on with results of the first")
    else:
        console.say("the same experiment: the second goes on in a folder with results of the first")


def _value(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False)


# --- validate ---------------------------------------------------------------------------------------------------------


def validate(files: Sequence[Path], console: Console) -> list[dict[str, Any]]:
    """Check each file by itself, and say what is wrong with the first problem of each; a record for each."""
    records = []
    for file in files:
        try:
            found = read(file)
            console.say(f"{file}: ok ({_summary(found.experiment)})")
            records.append({"file": str(file), "ok": True})
        except ElectraError as error:
            console.warn(str(error))
            records.append({"file": str(file), "ok": False, "error": str(error)})
    return records


def _summary(experiment: Experiment) -> str:
    arms = ", ".join(arm.label for arm in experiment.arms)
    budgets = experiment.budgets
    amount = plural(experiment.steps or 0, "step") if budgets is None else plural(len(budgets), "budget")
    return f"{experiment.name}: {arms}; {amount}, {plural(experiment.seeds, 'seed')}"
