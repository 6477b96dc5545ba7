"""Twenty kills of a training run, wherever it is: what it ends with is what it would have ended with, bit for bit."""

import pytest

from tests.pipeline.train_chaos import campaign

pytestmark = [pytest.mark.long, pytest.mark.multi]


def test_twenty_kills_leave_no_trace() -> None:
    said: list[str] = []
    chaos = campaign(20, seed=0, longest_pause=8.0, say=said.append)
    assert chaos.problems == [], said
    kills = {kind: count for kind, count in chaos.counts.items() if count}
    assert kills == {"rank": 4, "driver": 4, "raylet": 4, "kill_in_save": 4, "kill_in_resume": 4}, said
