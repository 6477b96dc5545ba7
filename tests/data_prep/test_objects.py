"""Folders and inputs in an object store behave as those on a disk do, and addresses are read as they are written."""

import hashlib
import io
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_prep import objects, storage
from data_prep.errors import ConfigError, DataError, PreflightError
from data_prep.storage import Folder


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """An empty folder of either kind."""
    monkeypatch.setenv("ELECTRA_CACHE", str(tmp_path / "cache"))
    if request.param == "disk":
        return storage.folder(tmp_path / "folder")
    bucket = request.getfixturevalue("object_store")
    return storage.folder(f"{bucket}/{uuid.uuid4().hex}")


@pytest.fixture
def prefix(object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty place in the store."""
    monkeypatch.setenv("ELECTRA_CACHE", str(tmp_path / "cache"))
    yield f"{object_store}/{uuid.uuid4().hex}"


def test_a_file_is_there_whole_or_not_at_all(place: Folder) -> None:
    place.prepare()
    assert place.names() == []
    with pytest.raises(RuntimeError), place.writer("a/b") as file:
        file.write(b"half")
        raise RuntimeError
    assert place.size("a/b") is None and place.names() == []
    with place.writer("a/b") as file:
        file.write(b"wh")
        assert place.size("a/b") is None
        file.write(b"ole")
    assert (place.size("a/b"), place.read_bytes("a/b"), place.names()) == (5, b"whole", ["a/b"])
    place.write_bytes("a/b", b"again")
    assert place.read_bytes("a/b") == b"again"


def test_an_upload_that_breaks_off_leaves_no_half(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow completes the object of a stream that is closed after an error."""

    def break_off(source: Any, target: Any, length: int) -> None:
        target.write(source.read(4))
        raise KeyboardInterrupt

    place = storage.folder(prefix)
    monkeypatch.setattr(objects.shutil, "copyfileobj", break_off)
    with pytest.raises(KeyboardInterrupt):
        place.write_bytes("a/b", b"whole or not")
    assert place.names() == []


def test_names_are_sorted_relative_and_below_the_prefix(place: Folder) -> None:
    for name in ("train/00001-000.tar", "train/00000-000.tar", "training/x", "manifest.json"):
        place.write_bytes(name, b"x")
    assert place.names() == ["manifest.json", "train/00000-000.tar", "train/00001-000.tar", "training/x"]
    assert place.names("train") == ["train/00000-000.tar", "train/00001-000.tar"]
    assert place.names("none") == []
    place.delete("train/00000-000.tar")
    place.delete("train/00000-000.tar")  # twice is no error
    assert place.names("train") == ["train/00001-000.tar"]


def test_files_are_moved_and_folders_removed(place: Folder) -> None:
    for name in ("a/x", "a/b/y", "ab/z"):
        place.write_bytes(name, name.encode())
    place.move("a/x", "c/d/x")
    assert place.names() == ["a/b/y", "ab/z", "c/d/x"] and place.read_bytes("c/d/x") == b"a/x"
    place.move("ab/z", "c/d/x")  # in its place
    assert place.read_bytes("c/d/x") == b"ab/z"
    with pytest.raises(FileNotFoundError):
        place.move("nothing", "e")
    below = place.sub("c").sub("d")
    assert (below.names(), str(below)) == (["x"], f"{place}/c/d")
    place.remove("a")
    place.remove("a")  # twice is no error
    below.remove("")
    assert place.names() == []


def test_an_object_is_read_as_a_file_is(place: Folder) -> None:
    data = bytes(range(256)) * 1000
    place.write_bytes("x", data)
    with place.open("x") as file:
        buffer = bytearray(100_000)
        assert file.seek(-10, 2) == len(data) - 10 and file.read() == data[-10:]
        assert (file.seek(7), file.readinto(buffer), bytes(buffer)) == (7, 100_000, data[7:100_007])
        assert (file.tell(), file.seek(5, 1), file.read(3)) == (100_007, 100_012, data[100_012:100_015])
        assert file.read() == data[100_015:] and file.read() == b""


def test_the_options_of_an_address_stay_at_its_end() -> None:
    place = storage.folder("s3://bucket/a?endpoint_override=localhost:1&scheme=http")
    assert str(place.sub("b").sub("c")) == "s3://bucket/a/b/c?endpoint_override=localhost:1&scheme=http"


def test_a_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a store that is too busy; in the end its error is told."""
    monkeypatch.setattr(objects, "_PAUSE", 0.0)
    refusals = iter([1, 0, 1, 1, 1, 0, 1, 1, 1, 1])

    class Busy(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            if next(refusals):
                self.seek(3)  # wherever it has come to
                raise OSError("503")
            return super().readinto(buffer)

    reader = objects._PatientReader(Busy(b"0123456789"))
    assert (reader.read(4), reader.read(4)) == (b"0123", b"4567")
    with pytest.raises(OSError, match="503"):
        reader.read(1)


def test_json_and_hashes(place: Folder) -> None:
    place.write_json("x.json", {"b": 1, "a": "é"})
    assert place.read_json("x.json") == {"a": "é", "b": 1}
    assert place.sha256("x.json") == hashlib.sha256(storage.json_bytes({"a": "é", "b": 1})).hexdigest()
    with pytest.raises(DataError, match=r"none\.json does not exist"):
        place.read_json("none.json")
    place.write_bytes("bad.json", b"\xff{")
    with pytest.raises(DataError, match=r"bad\.json is not valid JSON"):
        place.read_json("bad.json")
    with pytest.raises(FileNotFoundError):
        place.open("none")


def test_a_folder_travels_to_another_process(place: Folder) -> None:
    place.write_bytes("x", b"1")
    assert pickle.loads(pickle.dumps(place)).read_bytes("x") == b"1"
    assert storage.folder(place.location).read_bytes("x") == b"1"


def test_a_file_can_be_entered_anywhere(place: Folder) -> None:
    place.write_bytes("x", bytes(range(200)))
    with place.open("x") as file:
        file.seek(100)
        assert file.read(3) == bytes([100, 101, 102])


def test_a_fetched_file_is_verified_on_arrival_and_kept(prefix: str, tmp_path: Path) -> None:
    place = storage.folder(prefix)
    place.write_bytes("s.tar", b"rows")
    sha256 = hashlib.sha256(b"rows").hexdigest()
    path = place.local("s.tar", sha256=sha256)
    assert path.read_bytes() == b"rows" and path.is_relative_to(tmp_path / "cache")
    place.delete("s.tar")
    assert place.local("s.tar", sha256=sha256) == path  # from the cache

    path.write_bytes(b"rotten")
    place.write_bytes("s.tar", b"other")
    with pytest.raises(DataError, match=r"s\.tar was altered \(its sha256 differs\)"):
        place.local("s.tar", sha256=sha256)
    place.write_bytes("s.tar", b"rows")
    assert place.local("s.tar", sha256=sha256).read_bytes() == b"rows"


def test_a_store_that_is_not_there_is_one_sentence(object_store: str) -> None:
    with pytest.raises(PreflightError, match=r"Cannot write to s3://no-such-bucket/x .*bucket"):
        storage.folder("s3://no-such-bucket/x").prepare()


@pytest.mark.parametrize("address", ["ftp://host/x", "hdfs://host/x", "file:///etc/passwd"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="only local paths and s3://"):
        objects.open_input(address)
    with pytest.raises(ConfigError):
        storage.folder(address)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="environment") as error:
        storage.folder("s3://AKIAKEY:verysecret@bucket/x")
    assert "verysecret" not in str(error.value) and "AKIAKEY" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIAKEY:very/secret@bucket/x",  # a key often holds a "/", which ends the host
        "s3://bucket/x?secret_key=verysecret",
        "s3://bucket/*.jsonl?region=eu-west-1&access_key=AKIAKEY&secret%5Fkey=verysecret",
        "s3://bucket/x?session_token=verysecret",
        "s3://bucket/x?endpoint_override=http://AKIAKEY:verysecret@host",
        "gs://bucket/x?access_token=verysecret",
        "https://host/x?X-Amz-Date=1&X-Amz-Credential=AKIAKEY/eu&X-Amz-Signature=verysecret",
        "https://host/x?x-amz-security-token=verysecret",
        "https://host/x?sv=2024&sig=verysecret",
        "https://host/x?X-Goog-Signature=verysecret",
        "https://host/x?token=verysecret",
        "https://host/x#access_token=verysecret",
        "https://AKIAKEY:verysecret@host/x",
        "ftp://AKIAKEY:verysecret@host/x",
        "http://host/x?api-key=verysecret",
    ],
)
def test_secrets_are_refused_wherever_they_stand(address: str) -> None:
    with pytest.raises(ConfigError, match="put the credentials in the environment, not in the address") as error:
        objects.scheme_of(address)
    for part in ("secret@", "verysecret", "AKIAKEY", "very/"):
        assert part not in str(error.value)


@pytest.mark.parametrize(
    ("address", "scheme"),
    [
        ("/data/a?token=x", ""),
        ("s3://bucket/a@b/[ab]?.jsonl", "s3"),
        ("s3://bucket/x?region=eu-west-1&endpoint_override=127.0.0.1:9000&scheme=http", "s3"),
        ("https://host:8443/x?download=1&tokenizer=bert", "https"),
        ("HTTPS://host/x", "https"),
        ("http://127.0.0.1:80/x", "http"),
        ("http://localhost/x", "http"),
        ("http://[::1]:80/x", "http"),
    ],
)
def test_addresses_that_are_read(address: str, scheme: str) -> None:
    assert objects.scheme_of(address) == scheme


@pytest.mark.parametrize("address", ["http://host/x", "http://10.0.0.1/x", "http://127.0.0.1.example.org/x"])
def test_what_anybody_on_the_way_could_alter_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"{address}: only local paths and s3://, gs:// and https://"):
        objects.scheme_of(address)
    with pytest.raises(ConfigError, match="this is not an address"):
        objects.scheme_of("https://[host/x")


def test_a_web_address_holds_no_corpus() -> None:
    with pytest.raises(ConfigError, match="a corpus is kept in"):
        storage.folder("https://host/x")


def test_globs_in_a_store_mean_what_they_mean_on_a_disk(prefix: str, tmp_path: Path) -> None:
    names = [
        "a.jsonl",
        "b.jsonl",
        "a/jsonl",
        "sub/xjsonl",
        "b.txt",
        "sub/c.jsonl",
        "sub/deep/d.jsonl",
        "aa.jsonl",
        "[x].jsonl",
    ]
    place, disk = storage.folder(prefix), storage.folder(tmp_path / "disk")
    for name in names:
        place.write_bytes(name, b"x")
        disk.write_bytes(name, b"x")
    for pattern in (
        "*.jsonl",
        "?.jsonl",
        "**/*.jsonl",
        "sub/*",
        "[ab].jsonl",
        "a*",
        "*/d.jsonl",
        "sub/**/*.jsonl",
        "none*",
        "a?jsonl",
        "sub/?jsonl",
    ):
        on_disk = [
            Path(path).relative_to(tmp_path / "disk").as_posix() for path in objects.list_inputs(f"{disk}/{pattern}")
        ]
        in_store = [address.removeprefix(f"{prefix}/") for address in objects.list_inputs(f"{prefix}/{pattern}")]
        assert in_store == on_disk, pattern
    assert objects.list_inputs(f"{prefix}/a.jsonl") == [f"{prefix}/a.jsonl"]
    assert objects.list_inputs(f"{prefix}/none.jsonl") == []


def test_an_input_is_told_from_another_by_size_and_content(prefix: str, tmp_path: Path) -> None:
    content = bytes(3_000_000)
    local, address = tmp_path / "x", f"{prefix}/x"
    local.write_bytes(content)
    storage.folder(prefix).write_bytes("x", content)
    assert objects.input_size(str(local)) == objects.input_size(address) == len(content)
    version = objects.input_version(str(local), len(content))
    assert version == objects.input_version(address, len(content))  # wherever it lies
    for offset in (0, len(content) - 1):
        changed = bytearray(content)
        changed[offset] = 1
        local.write_bytes(changed)
        assert objects.input_version(str(local), len(content)) != version
    small = bytearray(1000)
    local.write_bytes(small)
    version = objects.input_version(str(local), 1000)
    small[501] = 1
    local.write_bytes(small)
    assert objects.input_version(str(local), 1000) != version  # of a small one every byte counts
