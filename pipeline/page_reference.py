"""The report's reference layer: the models of the ELECTRA paper beside the arms, under the paper's count of FLOPs.

Part of the page (`pipeline.page`): layout only, every text escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape

from pipeline import descriptions
from pipeline.page_parts import Head, drawing, table
from pipeline.published import MODELS, Model
from pipeline.suites import Suite
from pipeline.wording import arm_name, flops_text, names, score

_TEXT = (
    "The paper's own figures, from its Tables 1 and 2, and its training compute as its own script counts it "
    "(recomputed here). That count is not the one of the budgets above. Its means are over eight development sets, of "
    "medians of ten fine-tunings by its protocol: an arm stands beside them, and not in the same contest."
)


def reference_section(suite: Suite, drawings: Mapping[str, str]) -> str:
    """Empty where the suite is not GLUE, or a run did not record its FLOPs by that count."""
    if f"reference-{suite.name}" not in drawings:
        return ""
    tasks = [task.name for task in suite.in_mean]
    head: list[Head] = [("model", ""), ("parameters", ""), ("FLOPs", "recomputed"), ("FLOPs", "as printed")]
    head += [("GLUE mean", "eight tasks"), (f"{len(tasks)} tasks", "those of this mean"), ("note", "")]
    rows = [
        [
            model.name,
            model.parameters,
            flops_text(model.flops, 4),
            flops_text(model.flops_printed, 2),
            f"{model.glue:.1f}",
            _same_tasks(model, tasks),
            model.note,
        ]
        for model in MODELS
    ]
    rows += [
        [
            arm_name(cell.arm),
            f"{cell.parameters:,.0f}",
            flops_text(cell.flops_paper, 4),
            "–",
            "–",
            score(cell.mean),
            "this experiment",
        ]
        for cell in suite.cells
        if cell.flops_paper is not None
    ]
    caption = (
        "Crosses: published models; rings: those that the paper trained with its own method; their means are over "
        f"eight tasks, this experiment's over {names(tasks)}, with 95 % intervals."
    )
    note = f"Scores × 100. Table 2 alone has scores by task; the last column of scores is over {names(tasks)}."
    data = table(note, head, rows, words=(0, 6))
    figure = drawing(
        drawings[f"reference-{suite.name}"], descriptions.reference_text(suite, MODELS), caption, "panels", data
    )
    return f"<h3>Beside the published models</h3>\n<p>{escape(_TEXT)}</p>\n{figure}"


def _same_tasks(model: Model, tasks: Sequence[str]) -> str:
    """The mean over the tasks of this experiment, where the paper has them one by one."""
    if not set(tasks) <= set(model.tasks):
        return "–"
    return f"{sum(model.tasks[task] for task in tasks) / len(tasks):.1f}"
