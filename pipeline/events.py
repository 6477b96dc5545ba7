"""`electra events`: the story of one run or of all runs of an experiment, with reasons and costs."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import story_words
from pipeline.console import Console
from pipeline.run_folders import is_held, runs_at
from pipeline.story import Entry, Story, Totals, tell
from training import run_folder
from training.metrics import all_lines


def story_of(run_dir: Path) -> Story:
    """The story of a run so far."""
    return tell(run_folder.events(run_dir), all_lines(run_dir), alive=is_held(run_dir))


def events(target: Path, console: Console) -> dict[str, Any]:
    """Tell the stories of the runs that `target` names, in the order they began. DataError where it names none."""
    stories = [(run_dir, story_of(run_dir)) for run_dir in runs_at(target)]
    begun = sorted(
        ((run_dir, story) for run_dir, story in stories if story.entries), key=lambda one: one[1].entries[0].time
    )
    for run_dir, story in begun:
        console.say(run_dir.name)
        for entry in story.entries:
            console.say(f"  {_clock(entry.time)}  {story_words.sentence(entry)}")
            if entry.cost is not None:
                console.say(f"  {' ' * 19}  cost: {story_words.cost(entry.cost)}")
        assert story.totals is not None
        console.say(f"  {story_words.totals(story.totals)}")
    for run_dir, story in stories:
        if not story.entries:
            console.say(f"{run_dir.name}: nothing has happened yet")
    return {"runs": [_record(run_dir, story) for run_dir, story in begun]}


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _record(run_dir: Path, story: Story) -> dict[str, Any]:
    return {
        "run": run_dir.name,
        "entries": [_entry(entry) for entry in story.entries],
        "totals": _totals(story.totals),
    }


def _entry(entry: Entry) -> dict[str, Any]:
    cost = None if entry.cost is None else asdict(entry.cost)
    return {
        "time": entry.time,
        "attempt": entry.attempt,
        "event": entry.kind,
        "text": story_words.sentence(entry),
        "cost": cost,
        "events": entry.events,
    }


def _totals(totals: Totals | None) -> dict[str, Any] | None:
    return None if totals is None else {**asdict(totals), "goodput": totals.goodput}
