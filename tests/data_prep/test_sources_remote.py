"""Sources in an object store: listed, told apart and read there as on a disk. The store is moto's server."""

import contextlib
import gzip
import io
import itertools
import json
import random
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from data_prep.corpus import CorpusConfig
from data_prep.errors import ConfigError, DataError, PreflightError
from data_prep.plan import make_plan, obtain_plan
from data_prep.sources import Document, InputFile, Jsonl, Parquet, Rejected, Source, input_files, read

ADAPTER: TypeAdapter[Any] = TypeAdapter(Source)
TEXTS = [f"document {n} é\u2028" for n in range(500)]


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """An S3 client of a server with an empty bucket `corpus`."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="corpus")
        lines = [json.dumps({"text": text}).encode() for text in TEXTS]
        client.put_object(Bucket="corpus", Key="news/a.jsonl", Body=b"\n".join(lines[:250]))
        client.put_object(Bucket="corpus", Key="news/sub/b.jsonl.gz", Body=gzip.compress(b"\n".join(lines[250:])))
        client.put_object(Bucket="corpus", Key="news/readme.md", Body=b"no JSON")
        yield client
    server.stop()


def jsonl(path: str) -> Jsonl:
    return Jsonl(kind="jsonl", path=path)


def test_a_glob_is_listed_and_read(store: Any) -> None:
    source = jsonl("s3://corpus/news/**/*.jsonl*")
    files = input_files(source)
    assert files == [
        InputFile("a.jsonl", "s3://corpus/news/a.jsonl"),
        InputFile("sub/b.jsonl.gz", "s3://corpus/news/sub/b.jsonl.gz"),
    ]
    assert [record[2] for record in read(source, files)] == TEXTS


def test_a_web_address_is_one_file(store: Any) -> None:
    store.put_object_acl(Bucket="corpus", Key="news/sub/b.jsonl.gz", ACL="public-read")
    source = jsonl(f"{store.meta.endpoint_url}/corpus/news/sub/b.jsonl.gz?download=1")
    (file,) = input_files(source)
    assert file.name == "b.jsonl.gz"
    assert [record[2] for record in read(source, [file])] == TEXTS[250:]


def test_a_file_is_cut_there_as_on_a_disk(store: Any) -> None:
    source = jsonl("s3://corpus/news/a.jsonl")
    files = input_files(source)
    parts = [list(read(source, files, start, stop)) for start, stop in itertools.pairwise([0, 1000, 1001, 5000, 99999])]
    assert [record[2] for part in parts for record in part] == TEXTS[:250]


def test_plans_agree_with_those_of_a_disk(store: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.jsonl", "sub/b.jsonl.gz"):
        (tmp_path / name).write_bytes(store.get_object(Bucket="corpus", Key=f"news/{name}")["Body"].read())

    def config(path: str) -> CorpusConfig:
        return CorpusConfig.model_validate({"sources": [{"kind": "jsonl", "path": path}], "unit_bytes": 5_000})

    there, here = config("s3://corpus/news/**/*.jsonl*"), config(f"{tmp_path}/**/*.jsonl*")
    plans = make_plan(there, 0), make_plan(here, 0)
    assert plans[0].units == plans[1].units and plans[0].inputs_sha256() == plans[1].inputs_sha256()
    obtain_plan(there, 0, tmp_path / "out")
    assert obtain_plan(here, 0, tmp_path / "out").files == plans[1].files


def test_parquet_is_read_there(store: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet", row_group_size=100)
    data = (tmp_path / "a.parquet").read_bytes()
    store.put_object(Bucket="corpus", Key="tables/a.parquet", Body=data)
    store.put_object(Bucket="corpus", Key="tables/b.parquet", Body=data[:-100])
    source = Parquet(kind="parquet", path="s3://corpus/tables/*.parquet")
    *documents, last = read(source, input_files(source))
    assert documents == [Document(f"a.parquet:{n}", "a", text) for n, text in enumerate(TEXTS)]
    assert last == Rejected("damaged_archive", "b.parquet:0")


def test_an_object_that_vanished_ends_the_unit(store: Any) -> None:
    store.put_object(Bucket="corpus", Key="passing/a.jsonl", Body=b'{"text": "a"}')
    source = jsonl("s3://corpus/passing/a.jsonl")
    (file,) = planned(source)
    assert [record[2] for record in read(source, [file])] == ["a"]
    store.put_object(Bucket="corpus", Key="passing/a.jsonl", Body=b'{"text": "b"}')
    with pytest.raises(DataError, match=r"passing/a\.jsonl has changed since the plan was made"):
        list(read(source, [file]))
    store.delete_object(Bucket="corpus", Key="passing/a.jsonl")
    with pytest.raises(FileNotFoundError) as caught:
        list(read(source, [file]))
    assert caught.value.filename == "s3://corpus/passing/a.jsonl"


def planned(source: Any) -> list[InputFile]:
    config = CorpusConfig.model_validate({"sources": [source.model_dump()]})
    plan = make_plan(config, 0)
    return [file for unit in plan.units for file in plan.inputs(unit)]


class Server:
    """A web server for one file, which can be told to fail."""

    def __init__(self) -> None:
        self.content = b""
        self.ranges = True
        self.good_for = sys.maxsize  # requests that are answered before it is out of order
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                outer.good_for -= 1
                if outer.good_for < 0:
                    self.send_error(503, "Busy")
                    return
                asked, content = self.headers.get("Range"), outer.content
                if asked and outer.ranges:
                    first, last = (int(place) for place in asked.removeprefix("bytes=").split("-"))
                    content = content[first : last + 1]
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(outer.content)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                if outer.ranges:
                    self.send_header("Accept-Ranges", "bytes")
                self.end_headers()
                if body:
                    with contextlib.suppress(ConnectionError):  # a reader that has seen enough
                        self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def web() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def large_file(kind: str) -> tuple[bytes, int]:
    """A file of several of the blocks that are fetched at a time, and how many documents it holds."""
    texts = [random.Random(n).randbytes(10_000).hex() for n in range(1000)]
    table, sink = pa.table({"text": texts}), io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, sink, row_group_size=50, compression="none", use_dictionary=False)
    elif kind.startswith("arrow"):
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    elif kind == "webdataset":
        with tarfile.open(fileobj=sink, mode="w") as tar:
            for number, text in enumerate(texts):
                info = tarfile.TarInfo(f"{number}.txt")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
    else:
        sink.write(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    return sink.getvalue(), len(texts)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "arrow stream", "webdataset", "text"])
def test_a_server_that_fails_is_never_damage(web: Server, kind: str) -> None:
    """Wherever it fails, the unit ends: what was not sent cannot be found damaged."""
    web.content, documents = large_file(kind)
    kind = kind.split()[0]
    source = ADAPTER.validate_python({"kind": kind, "path": web.address("a")})
    files = input_files(source)
    before = web.good_for = 10_000
    found = list(read(source, files))
    requests = before - web.good_for
    assert not any(isinstance(record, Rejected) for record in found)
    assert len(found) == (1 if kind == "text" else documents) and requests >= 4
    for good_for in range(requests):
        web.good_for = good_for
        kept: list[Document | Rejected] = []
        with pytest.raises(OSError) as caught:
            kept.extend(read(source, files))
        assert caught.value.filename == web.address("a") and "503" in str(caught.value.strerror)
        assert caught.value.errno is None  # a number that cluster.tasks tries again
        assert not any(isinstance(record, Rejected) for record in kept)


def test_a_server_without_ranges_is_one_sentence(web: Server) -> None:
    web.ranges = False
    web.content = b'{"text": "a"}\n' * 10
    source = jsonl(web.address("a.jsonl"))
    assert [record[2] for record in read(source, planned(source))] == ["a"] * 10
    web.content *= 100_000
    with pytest.raises(DataError, match=r"a\.jsonl: the server does not send parts of a file .*; download it first"):
        planned(source)
    with pytest.raises(DataError, match="download it first"):
        list(read(source, input_files(source), 9_000_000, 9_100_000))


def test_an_address_that_cannot_be_listed_is_one_sentence(web: Server) -> None:
    web.good_for = 0
    with pytest.raises(PreflightError, match=r"a\.jsonl cannot be (listed|read) \(.*503"):
        planned(jsonl(web.address("a.jsonl")))


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("s3://corpus/none/*.jsonl", DataError, r"s3://corpus/none/\*\.jsonl matches no file"),
        ("s3://corpus/none.jsonl", DataError, "matches no file"),
        ("s3://key:secret@corpus/a.jsonl", ConfigError, "credentials in the environment"),
    ],
)
def test_what_is_not_there_is_one_sentence(store: Any, path: str, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        input_files(jsonl(path))
    assert "secret" not in str(caught.value)
