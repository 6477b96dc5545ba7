"""`electra experiment check`: whether an experiment is a matched comparison, before it is trained and afterwards.

Every run that the file plans is held to the rules of `pipeline.matching`: by its records where it has begun, by its
plan where it has not (before the corpus is prepared, for rows that are full). A run that was trained as another than
the file plans now is a breach as well. Writes nothing.
"""

from pathlib import Path
from typing import Any

from data_prep.errors import CheckError, DataError
from pipeline import corpora, gather, matching, sweep
from pipeline.assumed import is_assumed
from pipeline.console import Console
from pipeline.experiment import Experiment
from pipeline.gather import Contents, Run
from pipeline.matching import NOTES, Finding
from pipeline.matching_rules import flops_of
from pipeline.place import shown
from training.settings import RunSpec


def check(experiment: Experiment, out: Path, console: Console) -> dict[str, Any]:
    """Print what was checked. CheckError with the breaches."""
    contents, changed = _contents(experiment, out)
    findings = matching.check(contents) + changed
    console.table(
        "Runs",
        ["run", "budget", "counted", "off by", "spent", "paper's convention", "steps"],
        [_row(run) for run in contents.runs],
    )
    console.table("Checked", ["rule", "", "finding"], [[one.kind, _mark(one), one.sentence] for one in findings])
    broken = [one.sentence for one in findings if not one.ok]
    if broken:
        raise CheckError(
            f"{shown(out)} is no matched comparison: {' '.join(broken[:3])}"
            + (f" ({len(broken) - 3} more above.)" if len(broken) > 3 else "")
        )
    if any(map(is_assumed, contents.manifests.values())):
        console.say("The corpus is not prepared: this is the plan for rows that are full.")
    console.say(f"{shown(out)}: all rules hold for {len(contents.finished)} finished of {len(contents.runs)} runs")
    return {"findings": [{"kind": one.kind, "ok": one.ok, "sentence": one.sentence} for one in findings]}


def _mark(finding: Finding) -> str:
    if finding.kind in NOTES:
        return "note"
    return "holds" if finding.ok else "BROKEN"


def _row(run: Run) -> list[object]:
    done = run.done
    off = f"{flops_of(run) / run.budget - 1:+.2%}"
    if done is None:
        return [run.name, f"{run.budget:.2e}", f"{flops_of(run):.4g} planned", off, "–", "–", run.steps]
    paper = "–" if done.get("flops_paper") is None else f"{done['flops_paper']:.4g}"
    return [run.name, f"{run.budget:.2e}", f"{flops_of(run):.4g}", off, f"{done['flops_spent']:.4g}", paper, run.steps]


def _contents(experiment: Experiment, out: Path) -> tuple[Contents, list[Finding]]:
    """What is there, with the runs that are not begun as they are planned; and the runs that are others now."""
    readings = corpora.found(experiment, out.absolute())
    there = gather.read(out) if out.is_dir() else None
    begun = {run.name: run for run in (*there.runs, *there.first_stages)} if there else {}
    if begun and any(one.assumed for one in readings.values()):
        raise DataError(f"{out}: a corpus is gone, from which runs are planned; run `electra prepare` again.")
    record = sweep.chosen(experiment, out)  # no count depends on rates
    rated = experiment if record is None else experiment.with_rates(sweep.rates_of(record))
    planned = rated.runs(readings, out / "runs")
    runs = [begun.get(spec.name) or _as_run(spec, out) for spec in planned]
    contents = Contents(
        out=out,
        name=experiment.name,
        config=experiment.model_dump(mode="json"),
        runs=[run for run in runs if run.part_of is None],
        first_stages=[run for run in runs if run.part_of is not None],
        results=there.results if there else [],
        manifests={name: one.manifest for name, one in readings.items()},
    )
    others = [_changed(spec) for spec in planned if spec.name in begun and _is_other(spec, begun[spec.name])]
    stale = [_stale(begun=bool(begun))] if record is None and matching.chosen(out) is not None else []
    return contents, (stale if experiment.sweep is not None else []) + others


def _stale(*, begun: bool) -> Finding:
    """Of a choice that is not this file's: a breach where runs go by it."""
    sentence = (
        f"{sweep.FOLDER}/{sweep.CHOSEN} is the choice of another sweep than the file's; `electra experiment run` "
        "sweeps anew."
    )
    return Finding("sweep", not begun, sentence)


def _as_run(spec: RunSpec, out: Path) -> Run:
    """A run that has not begun, as it would be recorded."""
    return Run(
        folder=out / "runs" / spec.name,
        name=spec.name,
        arm=spec.identity.arm.label,
        objective=spec.identity.arm.objective,
        budget=spec.budget,
        seed=spec.identity.seed,
        steps=spec.steps,
        identity=spec.identity.model_dump(mode="json"),
        placement=spec.placement.model_dump(mode="json"),
        flops_per_step=spec.flops_per_step,
        inherited=spec.inherited,
        part_of=spec.part_of,
        done=None,
        lines=[],
    )


def _is_other(spec: RunSpec, run: Run) -> bool:
    return bool(spec.identity.model_dump(mode="json") != run.identity)


def _changed(spec: RunSpec) -> Finding:
    return Finding("settings", False, f"{spec.name} was begun as another run than the file plans now.")
