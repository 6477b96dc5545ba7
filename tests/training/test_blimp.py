"""BLiMP's reader: what it takes, which pairs it chooses, what it refuses and in which words; the official release."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError
from tests.training.pair_cases import cut, needs_real, official
from training.blimp import Pair, PairData, Paradigm, load_blimp


def row(name: str, good: str, bad: str, **more: Any) -> dict[str, Any]:
    return {"sentence_good": good, "sentence_bad": bad, "UID": name, "linguistics_term": f"term {name}", **more}


def written(path: Path, *rows: dict[str, Any], end: str = "\n", start: str = "") -> Path:
    content = start + "".join(json.dumps(entry, ensure_ascii=False) + end for entry in rows)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def many(name: str, count: int) -> list[dict[str, Any]]:
    return [row(name, f"good {i}", f"bad {i}", pairID=str(i), field="syntax") for i in range(count)]


def test_text_is_kept_as_it_is_and_other_keys_are_not_read(tmp_path: Path) -> None:
    """A byte order mark, CRLF, empty lines, a line separator of Unicode, a last line without its end."""
    good, bad = " Ann's\u2028“é” [MASK] ", "Ann \t😀"
    path = written(
        tmp_path / "a.jsonl", row("x", good, bad), {}, row("x", "1", "2", more=[]), end="\r\n", start="\ufeff"
    )
    path.write_bytes(path.read_bytes().replace(b"{}", b"").removesuffix(b"\r\n"))
    (paradigm,) = load_blimp(path).paradigms
    assert (paradigm.name, paradigm.term, set(paradigm.pairs)) == ("x", "term x", {Pair(good, bad), Pair("1", "2")})


def test_the_choice_hangs_on_the_texts_alone(tmp_path: Path) -> None:
    """Not on files, their order or compression; a smaller choice is part of a larger one."""
    rows = many("b", 40) + many("a", 40)
    one = written(tmp_path / "all.jsonl", *rows)
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder / "1.jsonl.gz", *reversed(rows[:50]))
    written(folder / "2.jsonl", *rows[50:])
    (folder / "README.md").write_text("not read")
    whole = load_blimp(one)
    assert whole == load_blimp(folder)
    assert [paradigm.name for paradigm in whole.paradigms] == ["a", "b"]
    assert [set(p.pairs) for p in whole.paradigms] == [{Pair(f"good {i}", f"bad {i}") for i in range(40)}] * 2
    for pairs in (1, 7, 39):
        chosen = load_blimp(folder, pairs)
        assert [p.pairs for p in chosen.paradigms] == [p.pairs[:pairs] for p in whole.paradigms]
    assert load_blimp(one, 41) == whole
    a, b = (paradigm.pairs[:7] for paradigm in whole.paradigms)
    assert set(a) != set(b)  # another choice in another paradigm
    assert set(a) != {Pair(f"good {i}", f"bad {i}") for i in range(7)}


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    data = load_blimp(written(tmp_path / "a.jsonl", *many("a", 9), row("b", "é\u2028", '"\\')), 5)
    data.save(tmp_path / "new" / "pairs.jsonl")
    assert load_blimp(tmp_path / "new" / "pairs.jsonl") == data
    other = PairData((data.paradigms[0], Paradigm("b", "term b", (Pair("é", '"\\'),))))
    assert len({data.sha256(), other.sha256(), load_blimp(tmp_path / "a.jsonl").sha256()}) == 3


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{", r"a\.jsonl:2: not JSON"),
        (b'{"a": "\xff"}', r"a\.jsonl:2: not JSON"),
        (b"[1]", r"a\.jsonl:2: UID, linguistics_term, sentence_good, sentence_bad must all be there and be texts"),
        (json.dumps(row("x", "a", " ")).encode(), r"a\.jsonl:2: UID, .* be texts"),
        (json.dumps({**row("x", "a", "b"), "UID": 3}).encode(), r"a\.jsonl:2: UID, .* be texts"),
        (json.dumps(row("x", "good", "bad")).encode(), r"a\.jsonl:2: the pair stands twice in paradigm x"),
        (
            json.dumps({**row("x", "a", "b"), "linguistics_term": "y"}).encode(),
            r"a\.jsonl:2: paradigm x is of term x and of y",
        ),
    ],
)
def test_a_faulty_row_is_named_with_file_and_line(line: bytes, fault: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", row("x", "good", "bad"))
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=fault):
        load_blimp(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    cut = written(tmp_path / "a.jsonl.gz", *many("a", 200))
    cut.write_bytes(cut.read_bytes()[:-20])
    empty = written(tmp_path / "empty.jsonl")
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, fault in (
        (cut, r"a\.jsonl\.gz is damaged \(damaged_archive\): get it anew"),
        (empty, r"empty\.jsonl holds no minimal pairs"),
        (folder, r"folder holds no \.jsonl file: name the folder of BLiMP's files"),
        (tmp_path / "none.jsonl", r"none\.jsonl cannot be read .*No such file"),
    ):
        with pytest.raises(DataError, match=fault):
            load_blimp(path)


@needs_real
def test_the_official_release() -> None:
    data = official()
    assert not data.subset
    assert [len(paradigm.pairs) for paradigm in data.paradigms] == [1000] * 67
    # the paper's 12 phenomena, and s-selection, which it counts with argument structure
    assert len({paradigm.term for paradigm in data.paradigms} - {"s-selection"}) == 12
    assert sum(pair.good == pair.bad for paradigm in data.paradigms for pair in paradigm.pairs) == 7
    assert cut(data, 999).subset
    assert PairData(data.paradigms[1:]).subset
