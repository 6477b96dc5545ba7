"""Units run once, are committed last, survive the death of their worker, and fail with the user's sentence."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cluster import tasks
from cluster.tasks import Unit, committed, run_units
from data_prep import storage
from data_prep.errors import DataError, PreflightError

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("ray_session")]


def square(payload: dict[str, Any]) -> dict[str, Any]:
    """Leaves a trace of every execution, so that tests can count them."""
    folder = Path(payload["folder"])
    with open(folder / f"ran-{payload['n']}", "a", encoding="utf-8") as file:
        file.write("x")
    return {"square": payload["n"] ** 2, "variable": os.environ.get("ELECTRA_TEST")}


def die_once(payload: dict[str, Any]) -> dict[str, Any]:
    """The first attempt is killed after its output is there but before it is committed."""
    mark = Path(payload["folder"]) / f"died-{payload['n']}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(payload)


def die(payload: dict[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def user_error(payload: dict[str, Any]) -> dict[str, Any]:
    if payload["n"] == 2:
        raise DataError("corpus.jsonl: line 3 is not what it should be.")
    return square(payload)


def full_disk(payload: dict[str, Any]) -> dict[str, Any]:
    with storage.atomic_writer(Path(payload["folder"]) / "out.tar"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def unreadable(payload: dict[str, Any]) -> dict[str, Any]:
    return {"text": (Path(payload["folder"]) / "none.txt").read_text()}


def defect(payload: dict[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("a defect")


def make_units(folder: Path, count: int, identity: str = "1") -> list[Unit]:
    return [
        Unit(
            name=f"unit {n}",
            payload={"n": n, "folder": str(folder)},
            folder=storage.folder(folder),
            record=f"parts/{n}.json",
            identity=identity,
        )
        for n in range(count)
    ]


def executions(folder: Path) -> dict[str, int]:
    return {path.name: len(path.read_text()) for path in sorted(folder.glob("ran-*"))}


def test_results_come_in_order_and_records_hold_them(tmp_path: Path) -> None:
    units = make_units(tmp_path, 7)
    seen: list[tuple[str, bool]] = []
    results = run_units(square, units, on_record=lambda unit, result, reused: seen.append((unit.name, reused)))
    assert [result["square"] for result in results] == [0, 1, 4, 9, 16, 25, 36]
    assert sorted(seen) == [(f"unit {n}", False) for n in range(7)]
    record = json.loads((tmp_path / "parts/3.json").read_text())
    assert record == {"identity": "1", "result": {"square": 9, "variable": None}}


def test_committed_units_are_not_run_again_unless_their_identity_or_files_changed(tmp_path: Path) -> None:
    run_units(square, make_units(tmp_path, 3))
    reused: list[bool] = []
    run_units(square, make_units(tmp_path, 4), on_record=lambda unit, result, was: reused.append(was))
    assert reused == [True, True, True, False]
    assert set(executions(tmp_path).values()) == {1}
    run_units(square, make_units(tmp_path, 4), intact=lambda unit, result: result["square"] != 4)
    assert executions(tmp_path) == {"ran-0": 1, "ran-1": 1, "ran-2": 2, "ran-3": 1}
    run_units(square, make_units(tmp_path, 4, identity="2"))
    assert executions(tmp_path) == {"ran-0": 2, "ran-1": 2, "ran-2": 3, "ran-3": 2}


@pytest.mark.parametrize("content", ["", '{"identity": "1", "res', "[]", '{"identity": "0", "result": {}}'])
def test_a_torn_or_foreign_record_does_not_count(tmp_path: Path, content: str) -> None:
    unit = make_units(tmp_path, 1)[0]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/0.json").write_text(content)
    assert committed(unit) is None
    assert run_units(square, [unit])[0]["square"] == 0
    assert committed(unit) == {"square": 0, "variable": None}


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    results = run_units(die_once, make_units(tmp_path, 3))
    assert [result["square"] for result in results] == [0, 1, 4]
    assert len(list(tmp_path.glob("died-*"))) == 3


def test_a_worker_that_keeps_dying_is_a_preflight_error(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"unit 0 died 2 times.*finished units are kept"):
        run_units(die, make_units(tmp_path, 1), max_retries=1)


def test_a_users_error_comes_out_as_itself_and_finished_units_stay(tmp_path: Path) -> None:
    units = make_units(tmp_path, 3)
    run_units(square, units[:1])
    with pytest.raises(DataError) as error:
        run_units(user_error, units)
    assert type(error.value) is DataError
    assert str(error.value) == "corpus.jsonl: line 3 is not what it should be."
    assert committed(units[0]) is not None and committed(units[2]) is None


@pytest.mark.parametrize(
    ("work", "file", "reason"),
    [(full_disk, "out.tar", "No space left on device"), (unreadable, "none.txt", "No such file or directory")],
)
def test_what_the_system_refuses_is_one_sentence_with_path_and_reason(
    tmp_path: Path, work: tasks.Work, file: str, reason: str
) -> None:
    with pytest.raises(PreflightError) as error:
        run_units(work, make_units(tmp_path, 1))
    assert type(error.value) is PreflightError and error.value.exit_code == 3
    assert str(error.value) == (
        f"unit 0: {tmp_path / file} ({reason}); put this right and run again: finished units are kept."
    )


def test_a_record_that_cannot_be_written_is_one_sentence_too(tmp_path: Path) -> None:
    (tmp_path / "parts").touch()  # where the folder of the records should be
    with pytest.raises(PreflightError, match=rf"unit 0: {tmp_path}/parts \(File exists\)"):
        run_units(square, make_units(tmp_path, 1))


def test_a_defect_keeps_its_type_and_remote_traceback(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as error:
        run_units(defect, make_units(tmp_path, 1))
    assert "a defect" in str(error.value) and "in defect" in str(error.value)
    assert "while running unit unit 0" in error.value.__notes__


def test_environment_reaches_the_workers(tmp_path: Path) -> None:
    results = run_units(square, make_units(tmp_path, 2), env={"ELECTRA_TEST": "here"})
    assert [result["variable"] for result in results] == ["here", "here"]


def test_many_units_keep_a_bounded_number_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    most = 0
    wait = ray.wait

    def counting(references: list[Any], **options: Any) -> Any:
        nonlocal most
        most = max(most, len(references))
        return wait(references, **options)

    monkeypatch.setattr(ray, "wait", counting)
    run_units(square, make_units(tmp_path, 20))
    assert most == tasks.IN_FLIGHT_PER_SLOT * ray.cluster_resources()["CPU"]
