"""Ten thousand odd inputs: nothing raises, and every record that is there by construction comes out as it must."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from data_prep.records import BAD
from data_prep.sources import Document, InputFile, Rejected, Source, read
from tests.data_prep import odd_inputs

Outcomes = list[tuple[str, str]]
ADAPTER: TypeAdapter[Any] = TypeAdapter(Source)
REASONS = BAD | {"redirect", "stub", "not_article"}
DAMAGED = ("reason", "damaged_archive")


def outcomes(path: Path, kind: str, data: bytes, start: int = 0, stop: int | None = None) -> Outcomes:
    """What a reader makes of a file with these bytes; every record is one of the two and has its place."""
    path.write_bytes(data)
    source = ADAPTER.validate_python({"kind": kind, "path": str(path)})
    found: Outcomes = []
    for record in read(source, [InputFile(path.name, str(path))], start, stop):
        if isinstance(record, Document):
            assert record.id.startswith(f"{path.name}:") and isinstance(record.text, str)
            found.append(("text", record.text))
        else:
            assert isinstance(record, Rejected) and record.reason in REASONS
            assert record.where.startswith(f"{path.name}:")
            found.append(("reason", record.reason))
    return found


def plain_jsonl(rng: random.Random, folder: Path) -> None:
    data, known = odd_inputs.jsonl(rng)
    check_cuts(rng, folder / "a.jsonl", "jsonl", data, known)


def plain_text(rng: random.Random, folder: Path) -> None:
    data, known = odd_inputs.blank_line_text(rng)
    check_cuts(rng, folder / "a.txt", "text", data, known)


def check_cuts(rng: random.Random, path: Path, kind: str, data: bytes, known: Outcomes) -> None:
    assert outcomes(path, kind, data) == known
    if data:
        edges = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(rng.randrange(6)))})
        parts = [outcomes(path, kind, data, start, stop) for start, stop in itertools.pairwise(edges)]
        assert list(itertools.chain(*parts)) == known


def archives(rng: random.Random, folder: Path) -> None:
    data, known = odd_inputs.jsonl(rng)
    suffix = rng.choice(list(odd_inputs.COMPRESS))
    stored = odd_inputs.members(rng, suffix, data) + b"\0" * rng.choice([0, 0, 7, 600])
    assert outcomes(folder / f"a.jsonl.{suffix}", "jsonl", stored) == known


def cut_archives(rng: random.Random, folder: Path) -> None:
    """What stands before the cut is read, and one rejection speaks of the rest, unless the cut lies between members."""
    data, known = odd_inputs.jsonl(rng)
    suffix = rng.choice(list(odd_inputs.COMPRESS))
    stored = odd_inputs.members(rng, suffix, data + b"\n")
    found = outcomes(folder / f"a.jsonl.{suffix}", "jsonl", stored[: rng.randrange(len(stored))])
    if found and found[-1] == DAMAGED:
        assert found[:-1] == known[: len(found) - 1]
    else:  # the last line may have lost its end with the members that are gone
        assert found[:-1] == known[: max(0, len(found) - 1)]


def broken_archives(rng: random.Random, folder: Path) -> None:
    data, _ = odd_inputs.jsonl(rng)
    suffix = rng.choice(list(odd_inputs.COMPRESS))
    found = outcomes(
        folder / f"a.jsonl.{suffix}", "jsonl", odd_inputs.broken(rng, odd_inputs.members(rng, suffix, data))
    )
    assert DAMAGED not in found[:-1]


def any_bytes(rng: random.Random, folder: Path) -> None:
    data = rng.choice([rng.randbytes, lambda n: odd_inputs.text(rng, n + 1).encode("utf-16"), bytes])(
        rng.randrange(400)
    )
    kind = rng.choice(["jsonl", "text", "parquet", "arrow", "webdataset", "wikipedia"])
    suffix = rng.choice(["", ".gz", ".zst", ".bz2", ".xz"])
    found = outcomes(folder / f"a{suffix}", kind, data)
    if kind in ("parquet", "arrow", "wikipedia") or suffix:
        assert found == [DAMAGED]


def parquet(rng: random.Random, folder: Path) -> None:
    table, known = odd_inputs.table(rng, parquet=True)
    stored = odd_inputs.parquet_file(rng, table)
    assert outcomes(folder / "a.parquet", "parquet", stored) == known


def broken_parquet(rng: random.Random, folder: Path) -> None:
    table, _ = odd_inputs.table(rng, parquet=True)
    stored = odd_inputs.broken(rng, odd_inputs.parquet_file(rng, table))
    outcomes(folder / "a.parquet", "parquet", stored)


def arrow(rng: random.Random, folder: Path) -> None:
    table, known = odd_inputs.table(rng, parquet=False)
    assert outcomes(folder / "a.arrow", "arrow", odd_inputs.arrow_file(rng, table)) == known


def broken_arrow(rng: random.Random, folder: Path) -> None:
    table, _ = odd_inputs.table(rng, parquet=False)
    stored = odd_inputs.broken(rng, odd_inputs.arrow_file(rng, table))
    outcomes(folder / "a.arrow", "arrow", stored)


def tars(rng: random.Random, folder: Path) -> None:
    """A member of no sample may be counted before the sample it follows."""
    data, known = odd_inputs.tar_file(rng)
    assert sorted(outcomes(folder / "a.tar", "webdataset", data)) == sorted(known)


def cut_tars(rng: random.Random, folder: Path) -> None:
    """A tar that lost its tail says so, wherever it was cut: `tarfile` alone would end quietly."""
    data, known = odd_inputs.tar_file(rng)
    end = len(data.rstrip(b"\0"))
    found = outcomes(folder / "a.tar", "webdataset", data[: rng.randrange(end)] if end else b"")
    assert found[-1] == DAMAGED and len(found) <= len(known) + 1


def broken_tars(rng: random.Random, folder: Path) -> None:
    data, _ = odd_inputs.tar_file(rng)
    assert DAMAGED not in outcomes(folder / "a.tar", "webdataset", odd_inputs.broken(rng, data))[:-1]


def wikipedia(rng: random.Random, folder: Path) -> None:
    data, known = odd_inputs.wikipedia(rng)
    assert outcomes(folder / "a.xml", "wikipedia", data) == known
    outcomes(folder / "a.xml", "wikipedia", odd_inputs.broken(rng, data))


CASES: list[tuple[Callable[[random.Random, Path], None], int]] = [
    (plain_jsonl, 2000),
    (plain_text, 1500),
    (archives, 1000),
    (cut_archives, 1000),
    (broken_archives, 1000),
    (any_bytes, 1000),
    (parquet, 300),
    (broken_parquet, 500),
    (arrow, 300),
    (broken_arrow, 500),
    (tars, 300),
    (cut_tars, 200),
    (broken_tars, 300),
    (wikipedia, 100),
]


def test_there_are_ten_thousand() -> None:
    assert sum(inputs for _, inputs in CASES) == 10_000


@pytest.mark.parametrize(("case", "inputs"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_odd_inputs_are_documents_or_rejections(
    case: Callable[[random.Random, Path], None], inputs: int, tmp_path: Path
) -> None:
    for seed in range(inputs):
        try:
            case(random.Random(f"{case.__name__} {seed}"), tmp_path)
        except BaseException as error:
            error.add_note(f"seed: {case.__name__} {seed}")
            raise
