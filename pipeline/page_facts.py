"""The report's sections on what was run: compute, corpus, configuration, limits.

Part of the page (`pipeline.page`): layout only, every text escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from data_prep.settings import fingerprint
from pipeline import rows_read, wording
from pipeline.analysis import Analysis
from pipeline.gather import Contents, Run
from pipeline.origins import Origin, inherited, origins, own
from pipeline.page_parts import Head, facts, table
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
    paragraphs = [verdict, *interventions(contents), *faults(contents), *beginnings(contents)]
    head: list[Head] = [
        ("run", ""),
        ("steps", ""),
        ("seconds", ""),
        ("goodput", "attempts"),
        ("tokens", "per second"),
        ("model FLOPs", "per second"),
    ]
    head += [("parameters", ""), ("processes", ""), ("trained on", "")]
    rows = [
        [
            run.name,
            count(run.done["step"]),
            f"{own(run.done)['seconds']:,.1f}",
            _goodput(run),
            count(run.done["tokens_per_second"]),
            flops_text(own(run.done)["flops_counted"] / own(run.done)["seconds"]),
            count(run.done["parameters"]),
            count(run.done["world_size"]),
            run.done["hardware"],
        ]
        for run in contents.finished
        if run.done
    ]
    note = (
        "Seconds: training alone, start-up and whatever a run began with apart. Goodput: time in steps that count ÷ "
        "time from the first beginning to the end, with what restarts repeated and waited for. No utilisation is given "
        "for a device whose peak is not known."
    )
    text = "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in paragraphs)
    return f"<h2>Compute and throughput</h2>\n{text}{table(note, head, rows, words=(0, 8))}"


def _goodput(run: Run) -> str:
    totals = run.totals
    if totals is None or totals.goodput is None:
        return "–"
    return f"{100 * totals.goodput:.1f} %\n{totals.attempts}"


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
    return [_beginning(run, found, here) for run in contents.finished if (found := _origins(run))]


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
    return any(one.identity not in firsts for one in _origins(run))


def _origins(run: Run) -> list[Origin]:
    return origins(run.identity, run.placement)


def _by_fingerprint(runs: Sequence[Run]) -> dict[str, Run]:
    return {fingerprint(run.identity): run for run in runs}


def what_ran(contents: Contents, analysis: Analysis, environment: Mapping[str, str]) -> str:
    """Corpus, configuration, software and machine."""
    parts = ["<h2>What was run, and on what</h2>"]
    if contents.manifest is not None:
        corpus = contents.manifest
        documents = corpus.documents
        rejected = ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in sorted(documents.rejected.items()))
        parts += [
            "<h3>Corpus</h3>",
            facts(
                [
                    ("documents read", f"{documents.documents_in:,}"),
                    ("documents kept", f"{documents.out:,} ({documents.text_bytes / 1e6:.1f} MB of text)"),
                    ("rejected", rejected or "none"),
                    (
                        "trained on",
                        f"{documents.train:,} documents, {corpus.train.rows:,} rows, {corpus.train.tokens:,} tokens",
                    ),
                    (
                        "held out",
                        f"{documents.heldout:,} documents, {corpus.heldout.rows:,} rows, "
                        f"{corpus.heldout.tokens:,} tokens",
                    ),
                    ("rows", f"{corpus.seq_len} tokens, layout {corpus.layout}"),
                    ("vocabulary", f"{corpus.vocab_size:,} entries, tokenizer sha256 {corpus.tokenizer_sha256}"),
                    ("manifest", f"sha256 {corpus.sha256}"),
                ]
            ),
        ]
    config = contents.config
    arms = [(f"arm {name}", _flat(arm)) for name, arm in zip(contents.arms, config.get("arms", []), strict=False)]
    sections = ("model", "training", "cluster")
    flat = [(name, _flat(config[name])) for name in sections if isinstance(config.get(name), dict)]
    protocols = [(f"fine-tuning, {suite.name}", _flat(suite.protocol)) for suite in analysis.suites]
    parts += ["<h3>Configuration</h3>", facts([*flat, *arms, *protocols])]
    parts += ["<h3>Software and machine of this report</h3>", facts(list(environment.items()))]
    return "\n".join(parts)


def _flat(section: Mapping[str, Any]) -> str:
    """Its settings in words, without those that are empty."""
    return ", ".join(
        f"{key.replace('_', ' ')} {_flat(value) if isinstance(value, dict) else value}"
        for key, value in section.items()
        if value not in (None, "", [], {})
    )


def limits(contents: Contents, analysis: Analysis) -> str:
    """What the figures cannot tell."""
    seeds = {cell.seeds for suite in analysis.suites for cell in suite.cells}
    largest = max(run.budget for run in contents.finished)
    limits = []
    if seeds and min(seeds) == 1:
        where = "each arm and budget" if max(seeds) == 1 else "some arms at some budgets"
        limits.append(
            f"One pre-training seed for {where}. How much another seed would move a score is not known there, and the "
            "intervals do not contain it."
        )
    limits.append(
        f"The largest budget is {flops_text(largest)} model FLOPs. ELECTRA's published gains were measured from about "
        "10¹⁸ FLOPs upwards; what holds here need not hold there."
        if largest < 1e17
        else f"The largest budget is {flops_text(largest)} model FLOPs; nothing is extrapolated beyond it."
    )
    if unpaid := [run.name for run in contents.finished if any(one.step is None for one in _origins(run))]:
        limits.append(
            f"{wording.names(unpaid)} began with weights whose cost is not known: no comparison with them is at equal "
            "compute."
        )
    limits.append(
        "Learning rates and other settings are those of the configuration. None was searched for, so one arm may be "
        "nearer its best than another."
    )
    if any(suite.name == "probes" for suite in analysis.suites):
        limits.append("The probes come from the corpus's own held-out documents. They are not GLUE and measure less.")
    if any(suite.name == "glue" for suite in analysis.suites):
        limits.append(
            "GLUE scores are of development sets and of the tasks named, which also served to compare the arms."
        )
    limits.append(
        "Model FLOPs count matrix products only; time and energy per FLOP differ between objectives (see throughput)."
    )
    return "<h2>Limits</h2>\n<ul>" + "".join(f"<li>{escape(limit)}</li>" for limit in limits) + "</ul>"
