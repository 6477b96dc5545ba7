"""The plan of a corpus: its input files and the units they are cut into, made once.

Units are natural to the input: groups of whole small files, a whole compressed or plain-text file, byte ranges of a
plain JSONL file. The plan is stored and verified on every later run, so that a resumed corpus is the corpus that was
begun: changed settings or inputs are refused with the key that changed and the way out.
"""

import itertools
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_prep import storage
from data_prep.corpus import RECIPE, CorpusConfig
from data_prep.errors import ConfigError, DataError
from data_prep.settings import Settings, fingerprint
from data_prep.sources import READ_FACTOR, InstalledDocs, Jsonl, Source, input_files, is_compressed

FILE_NAME = "plan.json"


class PlannedFile(Settings):
    """One input file as it was when the plan was made."""

    source: int
    name: str
    path: str
    package: str
    bytes: int
    sha256: str


class PlannedUnit(Settings):
    """Files [first, last) of the plan; with `stop`, the byte range [start, stop) of a single one."""

    unit: int
    source: int
    first: int
    last: int
    start: int = 0
    stop: int | None = None
    bytes: int


class Plan(Settings):
    """Everything the work depends on."""

    recipe: int
    seed: int
    config: dict[str, Any]
    tokenizer_sha256: str | None  # of an existing tokenizer's file
    files: list[PlannedFile]
    units: list[PlannedUnit]

    def inputs_sha256(self) -> str:
        """Hash of the inputs' names, sizes and contents, wherever they lie."""
        files = [[file.source, file.name, file.bytes, file.sha256] for file in self.files]
        return fingerprint({"files": files, "tokenizer": self.tokenizer_sha256})

    def unit_identity(self, unit: PlannedUnit) -> dict[str, Any]:
        """What the documents of a unit are a function of, as JSON."""
        files = [[file.name, file.bytes, file.sha256] for file in self.files[unit.first : unit.last]]
        return {
            "recipe": self.recipe,
            "source": self.config["sources"][unit.source],
            "cleaning": self.config["cleaning"],
            "files": files,
            "range": [unit.start, unit.stop],
        }


def make_plan(config: CorpusConfig, seed: int) -> Plan:
    """Find the input files and cut them into units. DataError: there is no input; ConfigError: a wrong package."""
    files: list[PlannedFile] = []
    units: list[PlannedUnit] = []
    for number, source in enumerate(config.sources):
        planned = _plan_files(number, source)
        _cut(number, source, planned, len(files), units, config.unit_bytes)
        files += planned
    return Plan(
        recipe=RECIPE,
        seed=seed,
        config=config.identity(),
        tokenizer_sha256=_tokenizer_sha256(config),
        files=files,
        units=units,
    )


def obtain_plan(config: CorpusConfig, seed: int, corpus_dir: Path) -> Plan:
    """The stored plan, verified against settings and inputs, or a new one, stored before it is returned."""
    path = corpus_dir / FILE_NAME
    if not path.exists():
        plan = make_plan(config, seed)
        storage.write_json(path, plan.model_dump(mode="json"))
        return plan
    try:
        plan = Plan.model_validate(storage.read_json(path))
    except ValidationError as error:
        raise DataError(
            f"{path} is not a plan of this version ({error.errors()[0]['msg']}); {_way_out(corpus_dir)}"
        ) from None
    _verify_config(plan, config, seed, corpus_dir)
    return _verify_inputs(plan, config, corpus_dir)


def _plan_files(number: int, source: Source) -> list[PlannedFile]:
    planned: list[PlannedFile] = []
    budget = source.max_bytes * READ_FACTOR if isinstance(source, InstalledDocs) and source.max_bytes else None
    total = 0
    for file in input_files(source):
        size = os.path.getsize(file.path)
        if budget is not None and total + size > budget and planned:
            break
        total += size
        planned.append(
            PlannedFile(
                source=number,
                name=file.name,
                path=file.path,
                package=file.package,
                bytes=size,
                sha256=storage.sha256_of(Path(file.path)),
            )
        )
    return planned


def _cut(
    number: int, source: Source, files: list[PlannedFile], offset: int, units: list[PlannedUnit], unit_bytes: int
) -> None:
    """Append the units of one source; files too large for a unit are cut where their format allows it."""
    first, size = 0, 0

    def close(last: int) -> None:
        nonlocal first, size
        if last > first:
            units.append(
                PlannedUnit(unit=len(units), source=number, first=offset + first, last=offset + last, bytes=size)
            )
        first, size = last, 0

    for i, file in enumerate(files):
        if size + file.bytes > unit_bytes:
            close(i)
        if file.bytes > unit_bytes and isinstance(source, Jsonl) and not is_compressed(file.name):
            pieces = -(-file.bytes // unit_bytes)
            edges = [file.bytes * k // pieces for k in range(pieces + 1)]
            for start, stop in itertools.pairwise(edges):
                units.append(
                    PlannedUnit(
                        unit=len(units),
                        source=number,
                        first=offset + i,
                        last=offset + i + 1,
                        start=start,
                        stop=stop,
                        bytes=stop - start,
                    )
                )
            first = i + 1
            continue
        size += file.bytes
    close(len(files))


def _verify_config(plan: Plan, config: CorpusConfig, seed: int, corpus_dir: Path) -> None:
    if plan.seed != seed:
        raise ConfigError(f"{corpus_dir} was begun with seed {plan.seed}, now it is {seed}; {_way_out(corpus_dir)}")
    if plan.recipe != RECIPE:
        raise ConfigError(f"{corpus_dir} was begun by another version of this program; {_way_out(corpus_dir)}")
    change = _first_difference(plan.config, config.identity(), "corpus")
    if change is not None:
        key, before, now = change
        raise ConfigError(f"{corpus_dir} was begun with {key} = {before}, now it is {now}; {_way_out(corpus_dir)}")


def _verify_inputs(plan: Plan, config: CorpusConfig, corpus_dir: Path) -> Plan:
    """The plan with the files where they lie now; ConfigError names the first that changed."""
    if plan.tokenizer_sha256 != _tokenizer_sha256(config):
        raise ConfigError(
            f"corpus.tokenizer.path {config.tokenizer.path} has changed since {corpus_dir} was begun; "
            + _way_out(corpus_dir)
        )
    files: list[PlannedFile] = []
    for number, source in enumerate(config.sources):
        planned = [file for file in plan.files if file.source == number]
        if not isinstance(source, InstalledDocs):
            found = {file.name: file.path for file in input_files(source)}
            if sorted(found) != sorted(file.name for file in planned):
                raise ConfigError(
                    f"corpus.sources[{number}].path {source.path} means other files than when {corpus_dir} was begun; "
                    + _way_out(corpus_dir)
                )
            planned = [file.model_copy(update={"path": found[file.name]}) for file in planned]
        for file in planned:
            size = os.path.getsize(file.path) if os.path.isfile(file.path) else -1
            if size != file.bytes or storage.sha256_of(Path(file.path)) != file.sha256:
                raise ConfigError(
                    f"corpus.sources[{number}]: {file.path} has changed since {corpus_dir} was begun; "
                    + _way_out(corpus_dir)
                )
        files += planned
    return plan.model_copy(update={"files": files})


def _tokenizer_sha256(config: CorpusConfig) -> str | None:
    if config.tokenizer.path is None:
        return None
    path = Path(config.tokenizer.path).expanduser().absolute()
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"corpus.tokenizer.path {file} does not exist; give a tokenizer.json or a vocab.txt.")
    return storage.sha256_of(file)


def _first_difference(before: Any, now: Any, key: str) -> tuple[str, Any, Any] | None:
    """(dotted key, old, new) of the first place where two JSON trees differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            if (found := _first_difference(before.get(name), now.get(name), f"{key}.{name}")) is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            if (found := _first_difference(a, b, f"{key}[{i}]")) is not None:
                return found
        return None
    return None if before == now else (key, before, now)


def _way_out(corpus_dir: Path) -> str:
    return f"use another --out, or delete {corpus_dir} to prepare it anew."
