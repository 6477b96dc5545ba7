"""All drawings of a report, by name."""

from collections.abc import Sequence

from pipeline import figures, figures_reference, figures_training, learning_signal, run_facts
from pipeline.analysis import Analysis
from pipeline.gather import Contents
from pipeline.published import MODELS
from pipeline.suites import Suite


def draw(contents: Contents, analysis: Analysis) -> dict[str, str]:
    """SVG elements: `curve-SUITE`, `axes-SUITE` and `frontier-SUITE` of every suite, `tasks-SUITE` where tasks are
    told of one by one, `reference-glue`, and `losses` and `labels`, where there is something to draw."""
    hours = run_facts.hours_name(contents.finished)
    found: dict[str, str | None] = {}
    for suite in analysis.suites:
        found[f"curve-{suite.name}"] = figures.curve(suite)
        found[f"axes-{suite.name}"] = figures.further_axes(suite, hours)
        if not suite.wide:
            found[f"tasks-{suite.name}"] = figures.small_multiples(suite, beside(suite, analysis.suites))
        if len({cell.arm for cell in suite.cells}) > 1:
            found[f"frontier-{suite.name}"] = figures.frontier(suite)
        if suite.name == "glue":
            found[f"reference-{suite.name}"] = figures_reference.reference(suite, MODELS)
    found["losses"] = figures_training.losses(contents.finished, contents.arms)
    found["labels"] = figures_training.labels(learning_signal.along(contents), contents.arms)
    return {name: svg for name, svg in found.items() if svg is not None}


def beside(suite: Suite, suites: Sequence[Suite]) -> list[Suite]:
    """The suites without fine-tuning, whose means are drawn beside the tasks of the first suite with it."""
    tuned = [one for one in suites if not one.wide]
    return [one for one in suites if one.wide] if tuned and suite.name == tuned[0].name else []
