"""The metadata of a model card: what the Hub reads, and a check of it that needs no network.

The Hub refuses a README whose YAML it cannot use, when everything else may have been uploaded already; `check_card`
finds what it would say beforehand: the block at the top, one licence, names the Hub knows, scores that are numbers, and
in `.eval_results/` files of its form. It does not know which data sets exist.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from data_prep.errors import CheckError, ConfigError

CARD = "README.md"
RESULTS = ".eval_results"  # the folder that the Hub reads scores from
UNSTATED = "not-stated"  # the licence of weights before whoever publishes them has said it
# Identifiers that the Hub has a page for and that weights are given; `other` says that the card tells.
LICENCES = (
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0",
    "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "openrail",
    "unlicense", "gfdl", "other",
)  # fmt: skip
_PIPELINES = ("fill-mask", "feature-extraction", "text-classification", "token-classification")
_BLOCK = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n", re.DOTALL)
NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")  # OWNER/NAME


def dump(data: Any) -> str:
    """As YAML, in the order given."""
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1000))


def front(metadata: Mapping[str, Any]) -> str:
    """The block that a README begins with."""
    return f"---\n{dump(dict(metadata))}---\n"


def read(folder: Path) -> dict[str, Any]:
    """The metadata of the card in a folder. CheckError where there is no card, or nothing to read at its top."""
    return _parsed(_text(folder), folder / CARD)


def with_licence(text: str, licence: str) -> str:
    """The card with another licence of its weights. ConfigError for one that the Hub has no name for."""
    if licence not in LICENCES:
        raise ConfigError(f"--license: {licence!r} is no licence the Hub knows; one of {', '.join(LICENCES)}")
    found = _parsed(text, Path(CARD))
    changed = {key: licence if key == "license" else value for key, value in found.items() if key != "license_name"}
    return front(changed) + text[_block(text, Path(CARD)).end() :]


def check_card(folder: Path, text: str | None = None) -> dict[str, Any]:
    """The metadata of the folder's card (of `text`, where that is to be sent in its place), found right. CheckError
    with the first thing that the Hub would refuse."""
    card = folder / CARD
    found = _parsed(_text(folder) if text is None else text, card)
    for problem in _problems(found):
        raise CheckError(f"{card}: {problem}; export the folder again, or correct the block at its top")
    for path in sorted((folder / RESULTS).glob("*.yaml")):
        _check_results(path)
    return found


def _text(folder: Path) -> str:
    try:
        return (folder / CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckError(f"{folder / CARD} does not exist: a model without a card is not published") from None
    except UnicodeDecodeError:
        raise CheckError(f"{folder / CARD} is not UTF-8 text; export the folder again") from None


def _block(text: str, card: Path) -> re.Match[str]:
    block = _BLOCK.match(text)
    if block is None:
        raise CheckError(f"{card}: it does not begin with a block of metadata between two lines `---`")
    return block


def _parsed(text: str, card: Path) -> dict[str, Any]:
    block = _block(text, card)
    try:
        found = yaml.safe_load(block[1])
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        raise CheckError(f"{card}:{line}: the metadata is not YAML; export the folder again, or correct it") from None
    if not isinstance(found, dict):
        raise CheckError(f"{card}: the metadata is no mapping; export the folder again, or correct it")
    return found


def _problems(found: Mapping[str, Any]) -> list[str]:
    problems = [f"`{key}` is missing" for key in ("language", "license", "library_name", "tags") if key not in found]
    licence = found.get("license")
    if licence is not None and licence not in LICENCES:
        problems.append(f"`license: {licence}` is no licence the Hub knows")
    if licence == "other" and not found.get("license_name"):
        problems.append("`license: other` needs a `license_name`")
    if found.get("pipeline_tag", _PIPELINES[0]) not in _PIPELINES:
        problems.append(f"`pipeline_tag: {found['pipeline_tag']}` is none of {', '.join(_PIPELINES)}")
    tags = found.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        problems.append("`tags` is no list of words")
    datasets = found.get("datasets", [])
    if not isinstance(datasets, list) or not all(isinstance(name, str) and NAMED.fullmatch(name) for name in datasets):
        problems.append("`datasets` is no list of names on the Hub (owner/name)")
    return problems + _index_problems(found.get("model-index", []))


def _index_problems(index: Any) -> list[str]:
    if not isinstance(index, list):
        return ["`model-index` is no list"]
    for model in index:
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            return ["`model-index`: a model without a name"]
        for result in model.get("results") or [{}]:
            if problem := _result_problem(result):
                return [f"`model-index`: {problem}"]
    return []


def _result_problem(result: Any) -> str | None:
    dataset = result.get("dataset") or {}
    metrics = result.get("metrics") or []
    if not isinstance((result.get("task") or {}).get("type"), str):
        return "a result without a type of task"
    if not all(isinstance(dataset.get(key), str) for key in ("type", "name")):
        return "a result without type and name of its data set"
    if "config" in dataset and not isinstance(dataset["config"], str):
        return f"the configuration {dataset['config']!r} of {dataset['name']} is no text"
    if not metrics or not all(isinstance(one.get("type"), str) and _is_number(one.get("value")) for one in metrics):
        return f"a score on {dataset['name']} is no number"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_results(path: Path) -> None:
    way_out = "export the folder again, or remove the file"
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        raise CheckError(f"{path}: not YAML; {way_out}") from None
    if not isinstance(entries, list) or not entries:
        raise CheckError(f"{path}: no list of results; {way_out}")
    for number, entry in enumerate(entries, start=1):
        dataset = entry.get("dataset") if isinstance(entry, dict) else None
        if not isinstance(dataset, dict) or not NAMED.fullmatch(str(dataset.get("id"))):
            raise CheckError(f"{path}: result {number} names no data set of the Hub (owner/name); {way_out}")
        if not isinstance(dataset.get("task_id"), str) or not _is_number(entry.get("value")):
            raise CheckError(f"{path}: result {number} has no task_id, or no number as its value; {way_out}")
