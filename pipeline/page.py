"""The report as one HTML page: no network, no script, readable on paper, on a phone and by a screen reader.

Only layout is decided here: numbers come from `pipeline.analysis`, their words from `pipeline.wording`, the drawings
from `pipeline.drawings`, and the sections from the other `page_` modules. Every figure has a description and its data
in a table; every text is escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape

from pipeline import run_facts, wording
from pipeline.analysis import Analysis
from pipeline.drawings import beside
from pipeline.gather import Contents, Run
from pipeline.page_compute import compute
from pipeline.page_facts import deviations_section, limits, what_ran
from pipeline.page_parts import document
from pipeline.page_suite import suite_section
from pipeline.page_sweep import sweep_section
from pipeline.page_training import losses_section, signal_section
from pipeline.wording import arm_name, flops_text


def page(contents: Contents, analysis: Analysis, drawings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The whole document, with the SVG elements that `pipeline.drawings` names."""
    hours = run_facts.hours_name(contents.finished)
    parts = [
        f"<h1>{escape(contents.name)}: score against training compute</h1>",
        f'<p class="soft">{escape(_subtitle(contents))}</p>',
        _missing(analysis.missing),
        _degenerate(contents.finished),
        '<div class="summary">' + "".join(f"<p>{escape(text)}</p>" for text in _summary(analysis)) + "</div>",
        *(suite_section(suite, beside(suite, analysis.suites), hours, drawings) for suite in analysis.suites),
        _further(contents),
        signal_section(contents, drawings),
        losses_section(contents, drawings),
        compute(contents, analysis),
        sweep_section(contents),
        deviations_section(contents, analysis),
        limits(contents, analysis),
        what_ran(contents, analysis, environment),
    ]
    return document(f"{contents.name}: score against training compute", [part for part in parts if part])


# --- sections ---------------------------------------------------------------------------------------------------------


def _subtitle(contents: Contents) -> str:
    arms = list(dict.fromkeys(arm_name(run.arm) for run in contents.runs))
    budgets = sorted({run.budget for run in contents.runs})
    return (
        f"{len(contents.finished)} finished training runs: {wording.names(arms)} at "
        f"{wording.names([flops_text(budget) for budget in budgets])} model FLOPs."
    )


def _missing(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="missing"><strong>This experiment is incomplete.</strong><ul>{items}</ul></div>'


def _degenerate(runs: Sequence[Run]) -> str:
    """The runs whose last held-out evaluation says that nothing was learned."""
    items = "".join(f"<li>{escape(run.name)}: {escape(run.degenerate)}.</li>" for run in runs if run.degenerate)
    head = "<strong>A healthy loss that means nothing.</strong> At the end of training:"
    return f'<div class="missing">{head}<ul>{items}</ul></div>' if items else ""


def _summary(analysis: Analysis) -> list[str]:
    """Paragraphs: one a suite, and what holds for all."""
    if not analysis.suites:
        return ["No arm was evaluated yet, so there is nothing to say about scores."]
    several = len(analysis.suites) > 1
    told = [" ".join([f"{wording.suite_name(suite)}."] * several + wording.summary(suite)) for suite in analysis.suites]
    return [*told, wording.caution(analysis.suites)]


def _further(contents: Contents) -> str:
    """Where the answers behind the scores are looked at."""
    if not (contents.out / "evaluation" / "report.html").is_file():
        return ""
    return (
        '<p class="soft">Confusion matrices and calibration are in evaluation/report.html of this experiment\'s '
        "folder, the mistakes in evaluation/mistakes/.</p>"
    )
