"""Which checkpoints stay, what is listed of those that are there, and whether there is room for them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_prep import storage
from data_prep.errors import PreflightError
from data_prep.storage import LocalFolder
from tests.training.saved import engine, local, saver, spec, take
from training import checkpoints
from training.checkpoints import Entry, Progress
from training.checkpoints.preflight import _refuse_small, bytes_of, most_kept
from training.engine import Engine
from training.settings import CheckpointConfig, RunSpec

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def one(process_group: None) -> Iterator[Engine]:
    with engine() as built:
        yield built


def entries(steps: str) -> list[Entry]:
    """`10 20! 30? 40=2.5`: valid; ! broken, ? unfinished; with a held-out loss."""
    found = []
    for word in steps.split():
        step, _, loss = word.rstrip("!?").partition("=")
        state = {"!": "broken", "?": "unfinished"}.get(word[-1], "valid")
        found.append(Entry(name=word, step=int(step), state=state, heldout_loss=float(loss) if loss else None))  # type: ignore[arg-type]
    return found


RULES: list[tuple[str, dict[str, object], list[int], dict[int, list[str]]]] = [
    ("", {}, [], {}),
    ("10", {"keep_last": 1}, [], {10: ["newest", "last 1"]}),
    ("10 20 30", {"keep_last": 2}, [], {20: ["last 2"], 30: ["newest", "last 2"]}),
    ("30 10 20", {"keep_last": 1}, [], {30: ["newest", "last 1"]}),  # in whatever order
    ("10 20 30! 40?", {"keep_last": 1}, [], {20: ["newest", "last 1"]}),  # what is not valid counts for nothing
    ("10! 20?", {}, [], {}),
    ("10 15 20 25 30", {"keep_last": 1, "keep_every": 10}, [],
     {10: ["every 10"], 20: ["every 10"], 30: ["newest", "last 1", "every 10"]}),
    ("10 15 20 30", {"keep_last": 1}, [15, 20, 99], {15: ["budget"], 20: ["budget"], 30: ["newest", "last 1"]}),
    ("10=3 20=2 30=2.5 40", {"keep_last": 1}, [], {20: ["best"], 40: ["newest", "last 1"]}),
    ("10=2 20=2 30=2.5", {"keep_last": 1}, [], {20: ["best"], 30: ["newest", "last 1"]}),  # of equal ones the newer
    ("10=1! 20=2 30=3", {"keep_last": 1}, [], {20: ["best"], 30: ["newest", "last 1"]}),
    ("10=1 20=2", {"keep_last": 1, "keep_best": False}, [], {20: ["newest", "last 1"]}),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "config", "save_at", "expected"), RULES)
def test_the_rules(steps: str, config: dict[str, object], save_at: list[int], expected: dict[int, list[str]]) -> None:
    assert checkpoints.kept(entries(steps), CheckpointConfig.model_validate(config), save_at) == expected


def test_pruning_removes_what_no_rule_holds_and_says_what(one: Engine, corpus: Path, tmp_path: Path) -> None:
    store = local(tmp_path)
    saving = saver(store, one, corpus)  # keeps all
    for step, loss in ((1, 3.0), (3, 1.0), (4, None), (6, 2.0), (7, None)):
        take(saving, step, loss)
    for step in (2, 9):
        (tmp_path / "checkpoints" / f"step-0000000{step}").mkdir()
        (tmp_path / "checkpoints" / f"step-0000000{step}" / "part-00000.safetensors").write_bytes(b"unfinished")
    broken = tmp_path / "checkpoints" / "step-00000006" / "part-00000.safetensors"
    broken.write_bytes(b"cut")
    assert [(entry.step, entry.state, entry.kept_by) for entry in checkpoints.listing(store)] == [
        (1, "valid", ["last 99"]),
        (2, "unfinished", []),
        (3, "valid", ["last 99", "best"]),
        (4, "valid", ["last 99"]),
        (6, "broken", []),
        (7, "valid", ["newest", "last 99"]),
        (9, "unfinished", []),
    ]
    placement = spec(corpus, save_at=(4,), keep_last=1).placement
    assert checkpoints.prune(store, placement) == ["step-00000001", "step-00000002"]
    # what is broken stays until it is asked for, and what is newer than the newest valid one may be being written
    assert [entry.step for entry in checkpoints.listing(store)] == [3, 4, 6, 7, 9]
    assert checkpoints.prune(store, placement, broken=True) == ["step-00000006"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == [
        f"step-0000000{step}" for step in (3, 4, 7, 9)
    ]


def test_what_is_spared_stays_whatever_the_rules_say(one: Engine, corpus: Path, tmp_path: Path) -> None:
    saving = saver(local(tmp_path), one, corpus, keep_last=1, keep_best=False)
    for step in (1, 2):
        take(saving, step)
    saving.start(Progress(step=3), heldout_loss=None, next_rows="")
    assert saving.settle(spare={2}).pruned == []
    saving.start(Progress(step=4), heldout_loss=None, next_rows="")
    assert saving.settle(spare={2}).pruned == ["step-00000003"]
    assert take(saving, 5).pruned == ["step-00000002", "step-00000004"]


def test_a_saving_reads_no_manifest_but_the_one_it_wrote(
    one: Engine, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks wait while rank 0 prunes. One that is written anew under the same name and size is read again."""
    saving = saver(local(tmp_path), one, corpus)
    read, whole = [], LocalFolder.read_bytes

    def noting(folder: LocalFolder, name: str) -> bytes:
        read.append(f"{folder.path.name[-1]}/{name}")
        return whole(folder, name)

    monkeypatch.setattr(LocalFolder, "read_bytes", noting)
    for step, loss in ((1, 2.5), (2, 3.5), (3, 4.5), (1, 5.5)):
        take(saving, step, loss)
    assert read == [f"{step}/manifest.json" for step in (1, 2, 3, 1)]
    placement = spec(corpus, keep_last=1).placement
    assert checkpoints.prune(local(tmp_path), placement, known=saving._known) == ["step-00000001"]


def test_the_last_hope_is_not_pruned(one: Engine, corpus: Path, tmp_path: Path) -> None:
    """Nothing valid is left: nothing goes, whatever is asked for."""
    store = local(tmp_path)
    saving = saver(store, one, corpus)
    take(saving, 1)
    take(saving, 2)
    for part in (tmp_path / "checkpoints").glob("*/part-*"):
        part.write_bytes(b"cut")
    assert checkpoints.prune(store, spec(corpus, keep_last=1).placement, broken=True) == []
    assert [entry.state for entry in checkpoints.listing(store)] == ["broken", "broken"]


def test_a_listing_says_what_an_operator_asks(one: Engine, corpus: Path, tmp_path: Path) -> None:
    store = local(tmp_path)
    assert checkpoints.listing(store) == []
    take(saver(store, one, corpus), 5, 1.25)
    take(saver(store, one, corpus), 6)
    folder = tmp_path / "checkpoints" / "step-00000006"
    data = bytearray((folder / "part-00000.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "part-00000.safetensors").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    five, six = checkpoints.listing(store)
    assert (five.name, five.tokens, five.flops_counted, five.heldout_loss) == ("step-00000005", 50, 0.0, 1.25)
    assert (six.state, six.saved_at) == ("valid", manifest["saved_at"])  # by its size
    assert six.bytes == sum(path.stat().st_size for path in folder.iterdir())
    five, six = checkpoints.listing(store, verify=True)
    assert (five.state, six.state, six.kept_by, six.tokens) == ("valid", "broken", [], None)
    assert six.reason is not None and "part-00000.safetensors was cut or altered" in six.reason


# --- before the first step --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "save_at", "most"),
    [
        ({}, (), 1),  # at the end only
        ({"every": 100}, (), 2 + 1 + 1),  # the last two, the one being written, the best
        ({"every": 100, "keep_best": False}, (), 2 + 1),
        ({"every": 100, "keep_last": 5, "keep_every": 500}, (250, 750), 5 + 1 + 1 + 2 + 2),
        ({"every": 500, "keep_last": 5}, (), 2 + 1),  # two on the way and one at the end, and no more
        ({"keep_last": 9}, (250, 1000), 2),  # the last step is one of the grid
    ],
)
def test_room_is_asked_for_what_retention_will_keep(
    settings: dict[str, object], save_at: tuple[int, ...], most: int, corpus: Path
) -> None:
    assert most_kept(_thousand(corpus, save_at, settings)) == most


def _thousand(corpus: Path, save_at: tuple[int, ...], settings: dict[str, object]) -> RunSpec:
    made = spec(corpus, save_at=save_at, **settings)
    return made.model_copy(update={"identity": made.identity.model_copy(update={"steps": 1000})})


def test_a_preflight_measures_and_leaves_nothing(one: Engine, corpus: Path, tmp_path: Path) -> None:
    made = spec(corpus, every=6)
    found = checkpoints.preflight(local(tmp_path), one.objective, made)
    size = bytes_of(one.objective)
    assert size == 12 * one.parameter_count  # fp32 and two states, nothing frozen
    take(saver(local(tmp_path / "saved"), one, corpus), 1)
    part = tmp_path / "saved" / "checkpoints" / "step-00000001" / "part-00000.safetensors"
    assert size < part.stat().st_size < 1.2 * size  # the header
    assert found["need_bytes"] == 4 * size and found["free_bytes"] > found["need_bytes"]
    assert found["mb_per_second"] > 0
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_store_that_rank_0_does_not_share_is_said_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.check_shared(local(tmp_path))
    assert list((tmp_path / "checkpoints").iterdir()) == []
    with monkeypatch.context() as patch, pytest.raises(PreflightError, match="rank 0 does not see what rank 0 writes"):
        patch.setattr(LocalFolder, "size", lambda self, name: None)
        checkpoints.check_shared(local(tmp_path))
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").write_text("no folder")
    with pytest.raises(PreflightError, match=r"checkpoints: rank 0 cannot write there \(File exists\)"):
        checkpoints.check_shared(local(tmp_path))


def test_too_little_room_is_said_before_the_first_step(
    one: Engine, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = local(tmp_path), spec(corpus, every=6)
    monkeypatch.setattr(type(store), "free_bytes", lambda self: 100_000)
    with pytest.raises(
        PreflightError, match=r"checkpoints: .* up to 4 checkpoints of .*, and 0\.1 MB are free"
    ) as caught:
        checkpoints.preflight(store, one.objective, made)
    assert caught.value.exit_code == 3 and "training.checkpoints.keep_last" in str(caught.value)
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").write_text("no folder")
    with pytest.raises(PreflightError, match=r"Cannot write to .*checkpoints"):
        checkpoints.preflight(store, one.objective, made)


def test_too_little_room_for_temporary_files_of_an_object_store_is_said(
    one: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, size = storage.folder("s3://bucket/run"), bytes_of(one.objective)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size))
    checkpoints.check_temporary(store, one.objective)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size - 1))
    checkpoints.check_temporary(local(tmp_path), one.objective)
    with pytest.raises(PreflightError, match=r"s3://bucket/run by way of temporary files .* TMPDIR"):
        checkpoints.check_temporary(store, one.objective)


def test_ranks_of_a_host_share_its_temporary_folder() -> None:
    store = storage.folder("s3://bucket/run")
    said = [("a", "/tmp", 25), ("b", "/tmp", 10), ("a", "/tmp", 20)]
    _refuse_small(store, said, 10)
    with pytest.raises(PreflightError, match=r"^/tmp on a: "):
        _refuse_small(store, [*said[:2], ("a", "/tmp", 19)], 10)
