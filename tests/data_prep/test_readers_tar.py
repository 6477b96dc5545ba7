"""WebDataset tars: samples by key, fields by extension, and no tail lost in silence."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset

from data_prep.sources import Document, Rejected, WebDatasetTars, input_files, read

TEXTS = [f"document {n} \u2028" * 20 for n in range(50)]


def write(path: Path) -> None:
    with open(path, "wb") as file, webdataset.TarWriter(file) as writer:
        for number, text in enumerate(TEXTS):
            writer.write({"__key__": f"{number:06d}", "txt": text, "json": {"body": text, "about": "x"}})


def headers(path: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return tar.getmembers()


def tars(path: Path, **fields: str) -> WebDatasetTars:
    return WebDatasetTars(kind="webdataset", path=str(path), **fields)


def read_all(source: WebDatasetTars) -> list[Document | Rejected]:
    return list(read(source, input_files(source)))


def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.tar")
    found = read_all(tars(tmp_path / "a.tar"))
    assert [record[1:] for record in found] == [("a", text) for text in TEXTS]
    assert found[0][0] == "a.tar:0" and len({record[0] for record in found}) == len(TEXTS)
    fields = {"text_field": "json:body", "topic_field": "json:about", "id_field": "__key__"}
    assert read_all(tars(tmp_path / "a.tar", **fields)) == [
        Document(f"{number:06d}", "x", text) for number, text in enumerate(TEXTS)
    ]
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    assert [record[2] for record in read_all(tars(tmp_path / "b.tar.gz"))] == TEXTS


def member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def test_odd_samples_are_rejections(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member(tar, "0.txt", b"a")
        member(tar, "0.TXT", b"again")
        member(tar, "1.json", b'{"text": ')
        member(tar, "2.txt", b"\xff")
        folder = tarfile.TarInfo("sub")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        link = tarfile.TarInfo("3.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        member(tar, "../../4.txt", b"never extracted")
    assert read_all(tars(tmp_path / "a.tar")) == [
        Rejected("duplicate_member", "a.tar:1024"),
        Document("a.tar:0", "a", "a"),
        Rejected("no_text_field", "a.tar:2048"),
        Rejected("not_utf8", "a.tar:3072"),
        Document("a.tar:5120", "a", "never extracted"),
    ]
    found = read_all(tars(tmp_path / "a.tar", text_field="json:text"))
    assert Rejected("bad_json", "a.tar:2048") in found


@pytest.mark.parametrize("where", ["between members", "in a header", "in a text", "before the end mark"])
def test_a_cut_tar_is_damage_wherever_it_was_cut(tmp_path: Path, where: str) -> None:
    """Python's own reader ends without an error in all but one of these."""
    write(tmp_path / "whole.tar")
    data = (tmp_path / "whole.tar").read_bytes()
    members = headers(tmp_path / "whole.tar")
    key_30 = next(m for m in members if m.name.startswith("000030"))
    end = {
        "between members": key_30.offset,
        "in a header": key_30.offset + 100,
        "in a text": key_30.offset_data + 10,
        "before the end mark": members[-1].offset_data + -(-members[-1].size // 512) * 512,
    }[where]
    (tmp_path / "a.tar").write_bytes(data[:end])
    *documents, last = read_all(tars(tmp_path / "a.tar"))
    assert last[0] == "damaged_archive"
    kept = len(TEXTS) if where == "before the end mark" else 30
    assert [record[2] for record in documents] == TEXTS[:kept]


def test_an_altered_header_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "a.tar")
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[headers(tmp_path / "a.tar")[60].offset + 3] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    *documents, last = read_all(tars(tmp_path / "a.tar"))
    assert len(documents) == 30 and last[0] == "damaged_archive"


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, "sparse", "many"])
def test_a_header_cannot_claim_any_memory(tmp_path: Path, kind: Any) -> None:
    """150 kB unpack to 150 MB of attributes, of a name, or of a map of the holes in a file."""
    import tracemalloc

    size = 150 << 20
    with gzip.open(tmp_path / "a.tar.gz", "wb", 1) as stored:
        stored.write(header("0.txt", 1) + b"a".ljust(512, b"\0"))
        if kind == "sparse":
            attributes = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
            stored.write(header("x", len(attributes), tarfile.XHDTYPE) + attributes.ljust(512, b"\0"))
            stored.write(header("1.txt", size) + b"70000000\n")
        elif kind == "many":
            for number in range(2500):
                record = b"60000 k%06d=" % number
                stored.write(header("x", 60_000, tarfile.XGLTYPE) + record.ljust(59_999, b"x") + b"\n")
                stored.write(bytes(-60_000 % 512) + header("noextension", 0))
        else:
            stored.write(header("x", size, kind) + b"%d comment=" % size)
        for _ in range(size >> 20 if kind != "many" else 0):
            stored.write(b"0\n" * (1 << 19))
    tracemalloc.start()
    found = read_all(tars(tmp_path / "a.tar.gz"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert Document("a.tar.gz:0", "a", "a") in found
    assert isinstance(found[-1], Rejected) and found[-1].reason == "damaged_archive"
    assert peak < 20_000_000


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


def test_attributes_and_long_names_of_usual_size_are_read(tmp_path: Path) -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=form, pax_headers={"comment": "c" * 1000}) as tar:
            member(tar, f"{'long/' * 400}é.txt", b"a")
        (found,) = read_all(tars(tmp_path / "a.tar", id_field="__key__"))
        assert found == Document("long/" * 400 + "é", "a", "a")


def test_webdataset_is_loaded_in_its_secure_mode(tmp_path: Path) -> None:
    write(tmp_path / "a.tar")
    code = f"""
from data_prep.sources import *
from data_prep.sources import WebDatasetTars
source = WebDatasetTars(kind="webdataset", path="{tmp_path}/a.tar")
assert len(list(read(source, input_files(source)))) == {len(TEXTS)}
from webdataset import utils
assert utils.enforce_security
"""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    environment.pop("WDS_SECURE", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_member_that_is_json_needs_no_other(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member(tar, "a/b.json", json.dumps({"text": "t"}).encode())
    assert read_all(tars(tmp_path / "a.tar", text_field="json:text")) == [Document("a.tar:0", "a", "t")]
