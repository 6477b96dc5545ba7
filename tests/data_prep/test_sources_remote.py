"""Sources in an object store: listed, told apart and read there as on a disk. The store is moto's server."""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_prep.corpus import CorpusConfig
from data_prep.errors import ConfigError, DataError
from data_prep.plan import make_plan, obtain_plan
from data_prep.sources import Document, InputFile, Jsonl, Parquet, Rejected, input_files, read

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
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet", row_group_size=100)
    data = (tmp_path / "a.parquet").read_bytes()
    store.put_object(Bucket="corpus", Key="tables/a.parquet", Body=data)
    store.put_object(Bucket="corpus", Key="tables/b.parquet", Body=data[:-100])
    source = Parquet(kind="parquet", path="s3://corpus/tables/*.parquet")
    *documents, last = read(source, input_files(source))
    assert documents == [Document(f"a.parquet:{n}", "a", text) for n, text in enumerate(TEXTS)]
    assert last == Rejected("damaged_archive", "b.parquet:0")


def test_an_object_that_vanished_is_counted(store: Any) -> None:
    source = jsonl("s3://corpus/news/a.jsonl")
    assert list(read(source, [InputFile("gone.jsonl", "s3://corpus/news/gone.jsonl")])) == [
        Rejected("unreadable", "gone.jsonl:0")
    ]


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
