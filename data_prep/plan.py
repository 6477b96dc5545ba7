"""The plan of a corpus: its input files and the units they are cut into, made once.

Units are natural to the input: groups of whole small files, a whole archive, byte ranges of a plain file, row groups,
record batches, rows. The plan is stored and verified on every later run, so that a resumed corpus is the corpus that
was begun: changed settings or inputs are refused with the key that changed and the way out. Inputs are told apart by
their size and a sample of their content, never by a hash of all of it.
"""

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from data_prep import storage
from data_prep.corpus import RECIPE, CorpusConfig
from data_prep.errors import ConfigError, DataError
from data_prep.extents import Extent, cut, measure, pinned
from data_prep.records import InputFile
from data_prep.settings import Settings, fingerprint
from data_prep.sources import READ_FACTOR, HubDataset, InstalledDocs, Source, input_files
from data_prep.storage import Folder, Location

FILE_NAME = "plan.json"
MAX_FILES = 10_000  # in a unit: opening a file costs time too, however small it is


class PlannedFile(NamedTuple):
    """One input file as it was when the plan was made; in the stored plan a list, for there may be millions."""

    source: int
    name: str
    path: str
    package: str
    bytes: int
    version: str


class PlannedUnit(Settings):
    """Files [first, last) of the plan; with `stop`, the range [start, stop) of a single one, in bytes, row groups,
    batches, rows or data files as its source has it."""

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
    evaluation_sets: str | None  # hash of the evaluation sets' files, where they are looked for
    files: list[PlannedFile]
    units: list[PlannedUnit]

    def inputs_sha256(self) -> str:
        """Hash of the inputs' names, sizes and contents, wherever they lie."""
        files = [[file.source, file.name, file.bytes, file.version] for file in self.files]
        return fingerprint(
            {"files": files, "tokenizer": self.tokenizer_sha256, "evaluation_sets": self.evaluation_sets}
        )

    def inputs(self, unit: PlannedUnit) -> list[InputFile]:
        """The files of a unit, each with the size and the version it was planned with."""
        return [InputFile(*file[1:]) for file in self.files[unit.first : unit.last]]

    def unit_identity(self, unit: PlannedUnit) -> dict[str, Any]:
        """What the documents of a unit are a function of, as JSON."""
        files = [[file.name, file.bytes, file.version] for file in self.files[unit.first : unit.last]]
        return {
            "recipe": self.recipe,
            "source": self.config["sources"][unit.source],
            "cleaning": self.config["cleaning"],
            "files": files,
            "range": [unit.start, unit.stop],
        }


def make_plan(config: CorpusConfig, seed: int) -> Plan:
    """Find the input files and cut them into units. DataError: there is no input, or no such vocabulary; ConfigError:
    a wrong package."""
    _check_tokenizer(config)
    files: list[PlannedFile] = []
    units: list[PlannedUnit] = []
    for number, source in enumerate(config.sources):
        found = [pinned(source, file) for file in input_files(source)]
        extents = measure(source, found)
        if isinstance(source, InstalledDocs) and source.max_bytes:
            found = _capped(found, extents, source.max_bytes * READ_FACTOR)
        _add_units(units, number, source, found, extents, len(files), config.unit_bytes)
        files += [
            PlannedFile(number, file.name, file.path, file.package, extent.bytes, extent.version)
            for file, extent in zip(found, extents, strict=False)
        ]
    return Plan(
        recipe=RECIPE,
        seed=seed,
        config=config.identity(),
        tokenizer_sha256=_tokenizer_sha256(config),
        evaluation_sets=_evaluation_sets(config),
        files=files,
        units=units,
    )


def obtain_plan(config: CorpusConfig, seed: int, location: Location) -> Plan:
    """The stored plan, verified against settings and inputs, or a new one, stored before it is returned."""
    corpus = storage.folder(location)
    if corpus.size(FILE_NAME) is None:
        plan = make_plan(config, seed)
        corpus.write_json(FILE_NAME, plan.model_dump(mode="json"))
        return plan
    try:
        plan = Plan.model_validate(corpus.read_json(FILE_NAME))
    except ValidationError as error:
        raise DataError(
            f"{corpus}/{FILE_NAME} is not a plan of this version ({error.errors()[0]['msg']}); {_way_out(corpus)}"
        ) from None
    _verify_config(plan, config, seed, corpus)
    return _verify_inputs(plan, config, corpus)


def _capped(files: list[InputFile], extents: list[Extent], budget: int) -> list[InputFile]:
    """The first files that stay within `budget` bytes together, and one at least."""
    total = 0
    for number, extent in enumerate(extents):
        total += extent.bytes
        if total > budget and number:
            return files[:number]
    return files


def _add_units(
    units: list[PlannedUnit],
    number: int,
    source: Source,
    files: list[InputFile],
    extents: list[Extent],
    offset: int,
    unit_bytes: int,
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

    for i, (file, extent) in enumerate(zip(files, extents, strict=False)):
        if size + extent.bytes > unit_bytes or i - first >= MAX_FILES:
            close(i)
        pieces = cut(source, file, extent, unit_bytes)
        for start, stop, bytes_ in pieces:
            units.append(
                PlannedUnit(
                    unit=len(units),
                    source=number,
                    first=offset + i,
                    last=offset + i + 1,
                    start=start,
                    stop=stop,
                    bytes=bytes_,
                )
            )
        if pieces:
            first = i + 1
            continue
        size += extent.bytes
    close(len(files))


def _verify_config(plan: Plan, config: CorpusConfig, seed: int, corpus: Folder) -> None:
    if plan.seed != seed:
        raise ConfigError(f"{corpus} was begun with seed {plan.seed}, now it is {seed}; {_way_out(corpus)}")
    if plan.recipe != RECIPE:
        raise ConfigError(f"{corpus} was begun by another version of this program; {_way_out(corpus)}")
    change = _first_difference(plan.config, config.identity(), "corpus")
    if change is not None:
        key, before, now = change
        raise ConfigError(f"{corpus} was begun with {key} = {before}, now it is {now}; {_way_out(corpus)}")


def _verify_inputs(plan: Plan, config: CorpusConfig, corpus: Folder) -> Plan:
    """The plan with the files where they lie now; ConfigError names the first that changed."""
    if plan.tokenizer_sha256 != _tokenizer_sha256(config):
        raise ConfigError(
            f"corpus.tokenizer.path {config.tokenizer.path} has changed since {corpus} was begun; {_way_out(corpus)}"
        )
    if plan.evaluation_sets != _evaluation_sets(config):
        raise ConfigError(
            f"corpus.decontamination.sets: their files have changed since {corpus} was begun; {_way_out(corpus)}"
        )
    files: list[PlannedFile] = []
    for number, source in enumerate(config.sources):
        planned = [file for file in plan.files if file.source == number]
        if not isinstance(source, InstalledDocs):
            found = {file.name: file.path for file in input_files(source)}
            if sorted(found) != sorted(file.name for file in planned):
                raise ConfigError(
                    f"corpus.sources[{number}].path {source.path} means other files than when {corpus} was begun; "
                    + _way_out(corpus)
                )
            planned = [file._replace(path=_place(source, file.path, found[file.name])) for file in planned]
        extents = measure(source, [InputFile(file.name, file.path, file.package) for file in planned])
        for file, extent in zip(planned, extents, strict=True):
            if (extent.bytes, extent.version) != (file.bytes, file.version):
                raise ConfigError(
                    f"corpus.sources[{number}]: {file.path} has changed since {corpus} was begun; {_way_out(corpus)}"
                )
        files += planned
    return plan.model_copy(update={"files": files})


def _evaluation_sets(config: CorpusConfig) -> str | None:
    if config.decontamination is None:
        return None
    from data_prep import decontaminate

    return fingerprint(decontaminate.set_versions(config.decontamination))


def _place(source: Source, before: str, now: str) -> str:
    """Where a file lies now; a dataset of the hub stays at its commit."""
    return before if isinstance(source, HubDataset) and before.startswith(f"{now}@") else now


def _check_tokenizer(config: CorpusConfig) -> None:
    """Load an existing vocabulary once, so that what is none is told before the work begins, not after."""
    if config.tokenizer.path is not None:
        from data_prep import tokenizer

        tokenizer.load(Path(config.tokenizer.path).expanduser(), lowercase=config.tokenizer.lowercase)


def _tokenizer_sha256(config: CorpusConfig) -> str | None:
    if config.tokenizer.path is None:
        return None
    from data_prep import vocabularies

    return vocabularies.fingerprint(Path(config.tokenizer.path).expanduser().absolute())


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


def _way_out(corpus: Folder) -> str:
    return f"use another --out, or delete {corpus} to prepare it anew."
