"""What an attempt has done beyond its records: which of them is the newest, whatever clocks say."""

import json
from pathlib import Path

import pytest

from training.metrics import unlogged_steps


@pytest.mark.parametrize(
    ("events", "lines", "unlogged"),
    [
        ([], [], 0),
        ([("started", 0, 0)], [], 20),
        ([("started", 0, 0)], [(0, 12)], 8),
        ([("started", 0, 0), ("started", 1, 5)], [(0, 12)], 15),  # and no line since
        ([("started", 0, 0), ("started", 1, 5)], [(0, 12), (1, 7)], 13),
        ([("started", 0, 0), ("started", 0, 0)], [(0, 12)], 8),  # the first died before its first segment
        ([("started", 0, 0), ("rollback", 0, 6)], [(0, 12)], 14),  # and no line since
        ([("started", 0, 0), ("rollback", 0, 6)], [(0, 12), (1, 9)], 11),
    ],
)
def test_the_newest_record_is_told_by_segments_not_by_clocks(
    events: list[tuple[str, int, int]], lines: list[tuple[int, int]], unlogged: int, tmp_path: Path
) -> None:
    """(event, attempt, step) and (segment, step), their times running backwards."""
    (tmp_path / "metrics").mkdir()
    with open(tmp_path / "events.jsonl", "w", encoding="utf-8") as file:
        for age, (name, attempt, step) in enumerate(events):
            fields = {"attempt": attempt, "step": step} if name == "started" else {"step": 12, "to_step": step}
            file.write(json.dumps({"time": 1000.0 - age, "event": name, **fields}) + "\n")
    for age, (segment, step) in enumerate(lines):
        line = {"attempt": segment, "resumed_at": 0, "step": step, "time": 500.0 - age, "values": {}}
        (tmp_path / "metrics" / f"A-{segment:05d}.jsonl").write_text(json.dumps(line) + "\n")
    assert unlogged_steps(tmp_path, 20) == unlogged
