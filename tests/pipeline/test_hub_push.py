"""Pushing to a local hub: what arrives, what is not sent again, branches and their index, other people's commits."""

import json
from pathlib import Path

import pytest

from data_prep.errors import CheckError, ConfigError, DataError, UploadError
from pipeline.console import Console
from pipeline.hub_push import push_folder
from tests.pipeline.hub_exports import write_export, write_model
from tests.pipeline.hub_server import TOKEN, Hub, connected


def push(folder: Path, repository: str = "me/small", **options: object) -> list[dict[str, object]]:
    return push_folder(folder, repository, Console(), **options)["sent"]  # type: ignore[arg-type]


def local(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def downloaded(hub: Hub, repository: str, folder: Path, revision: str = "main") -> dict[str, bytes]:
    """Everything of a revision, as another program gets it."""
    from huggingface_hub import snapshot_download

    snapshot_download(repository, revision=revision, local_dir=folder, endpoint=hub.endpoint, token=TOKEN)
    return {name: content for name, content in local(folder).items() if not name.startswith(".cache/")}


def test_what_was_pushed_comes_back(hub: Hub, tmp_path: Path) -> None:
    """Byte for byte, but for the line of the card that says where it lies; large files went to their own host, which
    was sent no token (the hub refuses one there)."""
    export = write_export(tmp_path / "export")
    (export / "discriminator" / ".eval_results").mkdir()
    entry = [{"dataset": {"id": "nyu-mll/glue", "task_id": "cola"}, "value": 0.5}]
    (export / "discriminator" / ".eval_results" / "glue.yaml").write_text(json.dumps(entry))
    (export / "discriminator" / ".cache.json").write_text("a program's own")
    (sent,) = push(export)
    came = downloaded(hub, "me/small", tmp_path / "came")
    there = local(export / "discriminator")
    del there[".cache.json"]
    there["README.md"] = there["README.md"].replace(b'name = "discriminator"', b'name = "me/small"')
    assert came.pop(".gitattributes")
    assert came == there
    assert sent["files"] == {name: len(content) for name, content in there.items()}
    head = hub.store.repositories["me/small"].head("main")
    assert (head.oid, head.title) == (sent["commit"], "Step 100")
    assert hub.store.repositories["me/small"].private
    assert head.files["model.safetensors"].sha256 is not None


def test_again_sends_nothing(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = write_export(tmp_path / "export")
    first = push(export)
    asked = len(hub.asked)
    assert push(export) == first
    again = hub.asked[asked:]
    assert not [one for one in again if one.method == "PUT" or "/commit/" in one.path]
    assert "had all of it" in capsys.readouterr().out
    (export / "discriminator" / "README.md").write_text(
        (export / "discriminator" / "README.md").read_text() + "\nMore.\n"
    )
    push(export)
    assert len(hub.sent("PUT")) == 1  # of the first time
    assert hub.store.read("me/small", "README.md").endswith(b"\nMore.\n")


def test_parts_of_large_files(waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model")
    weights = (folder / "model.safetensors").read_bytes()
    with connected(monkeypatch, part=30_000) as hub:
        push(folder)
        bodies = sorted(one.body for one in hub.sent("PUT"))
        assert bodies == [len(weights) - 60_000, 30_000, 30_000]
        assert hub.store.read("me/small", "model.safetensors") == weights


def test_each_network_has_a_repository(hub: Hub, tmp_path: Path) -> None:
    push(write_export(tmp_path / "export", kinds=("discriminator", "generator")), "lab/small")
    assert set(hub.store.repositories) == {"lab/small-discriminator", "lab/small-generator"}
    for kind in ("discriminator", "generator"):
        assert f'name = "lab/small-{kind}"'.encode() in hub.store.read(f"lab/small-{kind}", "README.md")


def test_a_dry_run_lists_and_reaches_nobody(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = write_export(tmp_path / "export")
    (one,) = push(export, dry_run=True, revision="trial")
    text = capsys.readouterr().out
    assert "me/small@trial (private)" in text
    for name, content in local(export / "discriminator").items():
        size = len(content) + (len("me/small") - len("discriminator") if name == "README.md" else 0)
        assert f"{size:>14,}  {name}\n" in text
        assert one["files"][name] == size  # type: ignore[index]
    assert hub.asked == []


def test_public_and_its_licence(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path / "model")
    push(folder, "me/open", public=True, licence="apache-2.0")
    assert not hub.store.repositories["me/open"].private
    card = hub.store.read("me/open", "README.md").decode()
    assert "license: apache-2.0\n" in card and "license_name" not in card
    assert "warning" not in capsys.readouterr().out
    with pytest.raises(UploadError, match="me/open is public already: say `--public`"):
        push(folder, "me/open")
    push(folder, "me/closed")
    push(folder, "me/closed", public=True)
    text = capsys.readouterr().out
    assert "me/closed is there already and private, and stays so" in text
    assert "the card states no licence of the weights" in text
    assert hub.store.repositories["me/closed"].private


def test_checkpoints_go_to_branches_with_an_index(hub: Hub, tmp_path: Path) -> None:
    for step in (300, 100):
        write_export(tmp_path / "all" / f"step-{step:08d}", step=step)
    sent = push(tmp_path / "all", every=True)
    first, second = "step-100-flops-2.40e12", "step-300-flops-7.20e12"
    assert [one["revision"] for one in sent] == [first, second, "main"]
    repository = hub.store.repositories["me/small"]
    assert set(repository.branches) == {"main", first, second}
    for revision, folder in ((first, 100), (second, 300), ("main", 300)):
        weights = (tmp_path / "all" / f"step-{folder:08d}" / "discriminator" / "model.safetensors").read_bytes()
        assert hub.store.read("me/small", "model.safetensors", revision) == weights
    assert len(hub.sent("PUT")) == 2  # main's are those of its branch
    run = {"run": "electra-2.40e+12-s0"}
    assert json.loads(hub.store.read("me/small", "revisions.json")) == {
        first: {**run, "step": 100, "tokens": 100_000, "flops": 2.4e12, "commit": repository.branches[first]},
        second: {**run, "step": 300, "tokens": 300_000, "flops": 7.2e12, "commit": repository.branches[second]},
    }
    before = dict(repository.branches)
    push(tmp_path / "all", every=True)
    assert repository.branches == before


def test_a_branch_of_ones_own_joins_the_index(hub: Hub, tmp_path: Path) -> None:
    hub.store.create("me/small", private=True)
    theirs = {"step-5-flops-1.00e9": {"step": 5, "flops": 1e9, "commit": "c" * 40}}
    hub.store.commit("me/small", "main", "theirs", None, {"revisions.json": json.dumps(theirs).encode()}, {})
    push(write_model(tmp_path / "model", step=3), revision="trial")
    index = json.loads(hub.store.read("me/small", "revisions.json"))
    assert list(index) == ["trial", "step-5-flops-1.00e9"]
    assert index["step-5-flops-1.00e9"] == theirs["step-5-flops-1.00e9"]
    assert "model.safetensors" not in hub.store.repositories["me/small"].head("main").files


def test_a_commit_of_somebody_else_meanwhile_is_built_upon(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def meddle() -> None:
        hub.store.commit("me/small", "main", "theirs", None, {"theirs.txt": b"theirs"}, {})

    hub.fail("POST /api/models/me/small/commit/main", 0, times=1, before=meddle)
    push(write_model(tmp_path / "model"))
    assert [one.status for one in hub.sent("POST /api/models/me/small/commit/")] == [412, 200]
    assert "me/small has changed meanwhile; committing on top of that" in capsys.readouterr().out
    repository = hub.store.repositories["me/small"]
    head = repository.head("main")
    assert head.parent is not None and repository.commits[head.parent].title == "theirs"
    assert {"theirs.txt", "model.safetensors"} <= head.files.keys()
    assert len(hub.sent("PUT")) == 1


def test_the_index_keeps_what_somebody_else_adds_meanwhile(hub: Hub, tmp_path: Path) -> None:
    theirs = {"step-5-flops-1.00e9": {"step": 5, "flops": 1e9, "commit": "c" * 40}}

    def meddle() -> None:
        hub.store.commit("me/small", "main", "theirs", None, {"revisions.json": json.dumps(theirs).encode()}, {})

    hub.fail("POST /api/models/me/small/commit/main", 0, times=1, before=meddle)
    push(write_model(tmp_path / "model"), revision="trial")
    assert set(json.loads(hub.store.read("me/small", "revisions.json"))) == {"trial", *theirs}


def test_a_folder_that_must_not_be_published_is_refused(hub: Hub, tmp_path: Path) -> None:
    def spoilt(name: str, content: str) -> Path:
        export = write_export(tmp_path / f"{len(list(tmp_path.iterdir()))}")
        path = export / "discriminator" / name
        path.write_text(content)
        return export

    with pytest.raises(CheckError, match=r"config.json: not what was proved when it was exported"):
        push(spoilt("config.json", '{"hidden_size": 17}'))
    with pytest.raises(CheckError, match=r"notes.md: it holds what looks like a secret"):
        push(spoilt("notes.md", f"the token is {TOKEN}"))
    with pytest.raises(CheckError, match=r"README.md: it does not begin with a block of metadata"):
        push(spoilt("README.md", "# small"))
    with pytest.raises(CheckError, match=r"no weights \(\*.safetensors\) in it"):
        weightless = write_model(tmp_path / "weightless")
        (weightless / "model.safetensors").unlink()
        push(weightless)
    assert hub.asked == []


def test_options_that_fit_nothing_are_refused(hub: Hub, tmp_path: Path) -> None:
    export = write_export(tmp_path / "export")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="me: no name of a repository; give it as OWNER/NAME"):
        push(export, "me")
    with pytest.raises(ConfigError, match="me/a b: no name of a repository"):
        push(export, "me/a b")
    with pytest.raises(ConfigError, match="--revision a/b: a branch is letters"):
        push(export, revision="a/b")
    with pytest.raises(ConfigError, match="--all-checkpoints names the branches itself"):
        push(export, revision="a", every=True)
    with pytest.raises(ConfigError, match="holds no folders of exported checkpoints"):
        push(export, every=True)
    with pytest.raises(ConfigError, match="--license: 'free' is no licence the Hub knows"):
        push(export, licence="free")
    with pytest.raises(DataError, match="holds no exported model"):
        push(tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist; run `electra export` first"):
        push(tmp_path / "nowhere")
    for name in ("one", "two"):
        write_export(tmp_path / "twice" / name, step=7)
    with pytest.raises(ConfigError, match=r"two folders in .* hold the same step"):
        push(tmp_path / "twice", every=True)
    assert hub.asked == []
