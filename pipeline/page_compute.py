"""The report's section on compute: what each run took, how fast it was, and what happened on the way.

Part of the page (`pipeline.page`): layout only, every text escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from data_prep.settings import fingerprint
from pipeline import rows_read, run_facts, wording
from pipeline.analysis import Analysis
from pipeline.gather import Contents, Run
from pipeline.origins import Origin, inherited, origins
from pipeline.page_parts import Head, table
from pipeline.story_words import plural
from pipeline.wording import count, flops_text


def compute(contents: Contents, analysis: Analysis) -> str:
    """How the budgets were met, and what time they took."""
    found = analysis.matching
    verdict = (
        "Counted FLOPs meet every budget within the larger of 1 % and one step. The largest deviation is "
        f"{wording.percent(found.worst_deviation)} ({found.worst_run}; its tolerance is {100 * found.tolerance:.2f} %)."
    )
    if found.outside:
        runs = [f"{name} ({wording.percent(deviation)})" for name, deviation in found.outside.items()]
        verdict = (
            "Counted FLOPs miss the budget by more than the larger of 1 % and one step in "
            f"{wording.names(runs)}: at equal compute these runs are compared only as nearly as that."
        )
    if not found.same_rows:
        verdict += " The runs did not read the same rows in the same order: their corpora or batch sizes differ."
    else:
        verdict = " ".join([verdict, *rows_read.sentences(contents)])
        if begun := [run.name for run in contents.finished if _began_elsewhere(run, contents)]:
            verdict += f" What {wording.names(begun)} began with had read rows before, which are not compared here."
    led_back = interventions(contents) or ["No run was led back to a checkpoint over a spike or a broken step."]
    paragraphs = [verdict, *led_back, *faults(contents), *beginnings(contents)]
    head: list[Head] = [
        ("run", ""),
        ("steps", ""),
        ("seconds", ""),
        ("goodput", "attempts"),
        ("tokens", "per second"),
        ("model FLOPs", "per second"),
        ("MFU", ""),
    ]
    head += [("parameters", ""), ("processes", ""), ("trained on", "")]
    rows = [
        [
            run.name,
            count(run.done["step"]),
            f"{run_facts.own(run, 'seconds'):,.1f}",
            _goodput(run),
            count(run.done["tokens_per_second"]),
            flops_text(run_facts.flops_per_second(run)),
            _mfu(run),
            count(run.done["parameters"]),
            count(run.done["world_size"]),
            run.done["hardware"],
        ]
        for run in contents.finished
        if run.done
    ]
    note = (
        "Seconds: training alone, start-up and whatever a run began with apart. Goodput: time in steps that count ÷ "
        "time from the first beginning to the end, with what restarts repeated and waited for. MFU: model FLOPs ÷ "
        "(time × the devices' peak); none where the peak is not known."
    )
    text = "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in paragraphs)
    return f"<h2>Compute and throughput</h2>\n{text}{_ledgers(contents)}\n{table(note, head, rows, words=(0, 9))}"


def _ledgers(contents: Contents) -> str:
    """What each run took, counted by both conventions."""
    head: list[Head] = [("run", ""), ("tokens", ""), ("counted FLOPs", "of the budget"), ("spent FLOPs", "of counted")]
    head.append(("counted as the paper counts", "of model FLOPs"))
    rows = [
        [
            run.name,
            count(run.done["tokens"]),
            f"{flops_text(run.done['flops_counted'], 4)}\n{100 * run.done['flops_counted'] / run.budget:.2f} %",
            f"{flops_text(run.done['flops_spent'], 4)}\n{run.done['flops_spent'] / run.done['flops_counted']:.3f} ×",
            _paper_flops(run.done),
        ]
        for run in contents.finished
        if run.done
    ]
    note = (
        "Counted: model FLOPs of the trajectory that survived, a generator's among them; spent: with what restarts "
        "repeated (of a decay branch, without what its trunk has spent). Last: the same training by the convention of "
        "the ELECTRA paper, which counts every operation, dense look-ups of embeddings and full rows, and takes the "
        "backward pass for as dear as the forward one; it is for laying beside the paper's figures and nothing else."
    )
    return table(note, head, rows)


def _paper_flops(done: Mapping[str, Any]) -> str:
    if "flops_paper" not in done:
        return "–"
    return f"{flops_text(done['flops_paper'], 4)}\n{done['flops_paper'] / done['flops_counted']:.3f} ×"


def _goodput(run: Run) -> str:
    totals = run.totals
    if totals is None or totals.goodput is None:
        return "–"
    return f"{100 * totals.goodput:.1f} %\n{totals.attempts}"


def _mfu(run: Run) -> str:
    found = run_facts.mfu(run)
    return "–" if found is None else f"{100 * found:.1f} %"


def interventions(contents: Contents) -> list[str]:
    """A sentence for every run, first stages too, that went back to a checkpoint and on with other rows: they are not
    the rows that the others read."""
    return [
        f"{_name(run)} left the road and went back to a checkpoint {plural(run.done['rollbacks'], 'time')}; "
        f"{run.done['rows_skipped']:,} rows that it had read since are left out of what counts, and others read them. "
        "What they cost is in its spent FLOPs."
        for run in [*contents.finished, *contents.first_stages]
        if run.done is not None and run.done.get("rollbacks")
    ]


def faults(contents: Contents) -> list[str]:
    """A sentence for every run, first stages too, that was disturbed on purpose."""
    return [
        f"Faults were injected into {_name(run)} on purpose (training.faults): {wording.names(found)}. Its figures are "
        "those of a drill."
        for run in [*contents.finished, *contents.first_stages]
        if (found := _faults(run))
    ]


def _faults(run: Run) -> list[str]:
    """`kill at step 15`, `spike at steps 20 and 21`; one that all ranks injected is one."""
    steps: dict[str, set[int]] = {}
    for event in run.events:
        if event["event"] == "fault":
            steps.setdefault(event["kind"], set()).add(event["step"])
    return [
        f"{kind.replace('_', ' ')} at step{'s' * (len(at) > 1)} {wording.names([f'{step:,}' for step in sorted(at)])}"
        for kind, at in steps.items()
    ]


def _name(run: Run) -> str:
    return run.name if run.part_of is None else f"{run.name}, the first stage of {run.part_of},"


def beginnings(contents: Contents) -> list[str]:
    """A few sentences for every finished run that began with trained weights: whose they are, and what they cost."""
    here = _by_fingerprint([*contents.first_stages, *contents.runs])
    return [_beginning(run, found, here) for run in contents.finished if (found := began_with(run))]


def _beginning(run: Run, found: Sequence[Origin], here: Mapping[str, Run]) -> str:
    texts = {one: _origin_text(one, here.get(one.identity)) for one in found}
    counted = [text for one, text in texts.items() if one.step is not None]
    unknown = [text for one, text in texts.items() if one.step is None]
    sentences = [f"{run.name} began with the weights of {wording.names(list(texts.values()))}."]
    if counted and run.done is not None:
        flops = inherited(run.done)["flops_counted"]
        whose = f"those of {wording.names(counted)}" if unknown else "theirs"
        sentences.append(
            f"Its FLOPs, tokens and seconds, not its steps, contain {whose} as far as their own records go: "
            f"{flops_text(flops)} model FLOPs, {100 * flops / run.done['flops_counted']:.0f} % of all."
        )
    if unknown:
        sentences.append(f"What {wording.names(unknown)} cost is not known and is in none of its figures.")
    return " ".join(sentences)


def _origin_text(one: Origin, run: Run | None) -> str:
    """`NAME (mlm, step 789)`, `NAME (Hugging Face folder)`; the objective where the run is of this experiment."""
    of = "" if run is None else f"{run.objective}, "
    use = ", for the generator" if one.generator_only else ""
    what = "Hugging Face folder" if one.step is None else f"{of}step {one.step:,}"
    return f"{one.name} ({what}{use})"


def _began_elsewhere(run: Run, contents: Contents) -> bool:
    """Whether it began with more than a first stage of its own, whose rows it goes on from."""
    firsts = _by_fingerprint(contents.first_stages)
    return any(one.identity not in firsts for one in began_with(run))


def began_with(run: Run) -> list[Origin]:
    """Whose weights a run began with."""
    return origins(run.identity, run.placement)


def _by_fingerprint(runs: Sequence[Run]) -> dict[str, Run]:
    return {fingerprint(run.identity): run for run in runs}
