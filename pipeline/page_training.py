"""The report's sections on training: what a row can teach, and generator and discriminator along each run.

Part of the page (`pipeline.page`): layout only, every text escaped. Every figure has a description and its data; of
long runs every so many-th evaluation, and all of them are in curves.csv.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeVar

from pipeline import descriptions, learning_signal
from pipeline.figures_training import loss_panels, loss_points, stretches
from pipeline.gather import Contents, Run
from pipeline.learning_signal import Signal
from pipeline.page_parts import Head, details, drawing, table
from pipeline.wording import LOSSES, arm_name, count, flops_text

# What the table of held-out figures shows, and how it is headed; the rest is in the details.
_HELDOUT: dict[str, Head] = {
    "mlm_loss": ("MLM loss", "nats"),
    "mlm_accuracy": ("MLM accuracy", ""),
    "replaced_loss": ("Replace MLM", "loss, nats"),
    "all_tokens_loss": ("All-Tokens", "loss, nats"),
    "rtd_loss": ("RTD loss", "nats"),
    "rtd_label_entropy": ("label entropy", "nats"),
    "rtd_information": ("of it explained", "share"),
    "rtd_auc": ("RTD AUC", ""),
    "reward": ("reward", "nats"),
    "nsp_loss": ("NSP loss", "nats"),
    "nsp_accuracy": ("NSP accuracy", ""),
}

T = TypeVar("T")
_ROWS = 600  # in a table of what was recorded along training, all runs together


# --- learning signal --------------------------------------------------------------------------------------------------


def signal_section(contents: Contents, drawings: Mapping[str, str]) -> str:
    """Positions with a gradient and bits a row: at most, and as measured."""
    here = learning_signal.signals(contents)
    if not here:
        return ""
    words, labels = learning_signal.paper()
    along = learning_signal.along(contents)
    text = (
        f"On a full row of {words.tokens} tokens, masked language modelling at 15 % learns from {words.positions:.0f} "
        f"positions and replaced-token detection from all {labels.positions:.0f}: "
        f"{labels.positions / words.positions:.1f} times as many. In bits it is the other way round: at most "
        f"{words.most:,.0f} ({words.positions:.0f} × log₂ 30,522) against at most {labels.most:.0f} "
        f"({labels.most / words.most:.2f} times as many), and a label says less than a bit where most tokens are "
        f"original: {learning_signal.entropy(0.06):.2f} bit at 6 % replaced. More positions are not more information; "
        "which of the two matters is what the scores are for."
    )
    head: list[Head] = [("arm", ""), ("budget", "FLOPs"), ("tokens", "a row"), ("with a gradient", "positions a row")]
    head += [("at most", "bits a row"), ("replaced", "of those judged"), ("label entropy", "bits a position")]
    head += [("measured", "bits a row"), ("explained", "bits a row")]
    note = (
        "The first two rows are the paper's recipe; the others are the arms, with what their last held-out evaluation "
        "measured. Measured: the entropy of the labels at that share of replaced tokens. Explained: by how much the "
        "detector's loss is below it. What a masked token's label holds is not measured, only bounded. The network "
        "told of is the one that is fine-tuned."
    )
    parts = ["<h2>Learning signal</h2>", f"<p>{escape(text)}</p>"]
    parts.append(table(note, head, [_signal_row(one) for one in (words, labels, *here)], group_by=1))
    if along:
        caption = (
            "Grey: the entropy of a label at each share of replaced tokens. Points: held-out evaluations along the "
            "runs. As a generator learns, it replaces fewer tokens and the labels say less."
        )
        rows = [
            [one.run, flops_text(flops), f"{rate:.4f}", f"{bits:.4f}"]
            for one in along
            for flops, rate, bits in _some(list(zip(one.flops, one.rates, one.bits, strict=True)), len(along))
        ]
        columns = [("run", ""), ("FLOPs so far", ""), ("replaced", "share"), ("entropy", "bits a label")]
        data = table("Held-out evaluations.", columns, rows, group_by=0)
        parts.append(drawing(drawings["labels"], descriptions.labels_text(along), caption, "curve", data))
    return "\n".join(parts)


def _signal_row(one: Signal) -> list[str]:
    return [
        arm_name(one.arm),
        "–" if one.budget is None else flops_text(one.budget),
        f"{one.tokens:,.1f}",
        f"{one.positions:,.1f}",
        f"{one.most:,.1f}",
        "–" if one.replaced is None else f"{100 * one.replaced:.2f} %",
        "–" if one.measured is None else f"{one.measured / one.positions:.3f}",
        "–" if one.measured is None else f"{one.measured:,.1f}",
        "–" if one.explained is None else f"{one.explained:,.1f}".replace("-", "−"),
    ]


# --- losses -----------------------------------------------------------------------------------------------------------


def losses_section(contents: Contents, drawings: Mapping[str, str]) -> str:
    """Training and held-out figures of generators, discriminators and the other networks."""
    note = (
        "Losses of different objectives are not comparable: they are means over different positions of different "
        "questions (a generator's masked-token loss is a smaller network's; replaced-token loss is binary). Compare an "
        "arm with itself, and arms by the scores above."
    )
    runs = contents.finished
    metrics = sorted({name for run in runs if run.done for name in run.done.get("heldout", {})})
    if not metrics:
        return ""
    parts = ["<h2>Generator, discriminator and the others along training</h2>", f"<p>{escape(note)}</p>"]
    if "losses" in drawings:
        caption = (
            "Lines: training, mean over the steps since the line before. Points: held-out rows, the same for all arms "
            "(BERT's with half of the second segments exchanged). Each panel has its own vertical scale."
        )
        data = _along_table(runs)
        parts.append(drawing(drawings["losses"], descriptions.losses_text(runs), caption, "panels", data))
    shown = [name for name in _HELDOUT if f"heldout/{name}" in metrics]
    head: list[Head] = [("run", ""), *(_HELDOUT[name] for name in shown)]
    rows = [
        [_marked(run), *(_four(run.done["heldout"].get(f"heldout/{name}")) for name in shown)]
        for run in runs
        if run.done
    ]
    note = (
        "Held-out figures at the last step. MLM: masked tokens, of the generator where there is one; RTD: replaced "
        "tokens; NSP: next sentence. Read the RTD loss beside the label entropy, the loss of a detector that knows the "
        "replaced rate and no more; an AUC of 0.5 is chance. Degenerate: less than 1 % of that entropy explained, and "
        "an AUC below 0.55."
    )
    parts.append(table(note, head, rows))
    parts.append(details("Every held-out value", _heldout_table(runs, metrics)))
    return "\n".join(parts)


def _marked(run: Run) -> str:
    return f"{run.name}\ndegenerate" if run.degenerate else run.name


def _four(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _along_table(runs: Sequence[Run]) -> str:
    """What the figure of losses draws."""
    lines = [(run, name) for arm, name in loss_panels(runs) for run in runs if run.arm == arm]
    most = _each(2 * len(lines))
    rows = [
        [run.name, LOSSES[name], kind, f"{flops:.4g}", f"{value:.4f}"]
        for run, name in lines
        for kind in ("train", "heldout")
        for flops, value in stretches(loss_points(run, f"{kind}/{name}"), most)
    ]
    head = [("run", ""), ("quantity", ""), ("rows", ""), ("FLOPs so far", ""), ("value", "")]
    note = (
        f"At most {most} stretches of a run, each by its end and its mean; every recorded value is in curves.csv "
        "beside this page."
    )
    return table(note, head, rows, words=(0, 1, 2), group_by=0)


def _heldout_table(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    head = [("run", ""), ("step", ""), ("FLOPs so far", ""), *((name.removeprefix("heldout/"), "") for name in metrics)]
    rows = [
        [run.name, count(line["step"]), f"{line['values']['flops']:.4g}"]
        + [_four(line["values"].get(name)) for name in metrics]
        for run in runs
        for line in _some([one for one in run.lines if any(name in one["values"] for name in metrics)], len(runs))
    ]
    return table("As recorded during training; of long runs every so many-th evaluation.", head, rows)


def _each(lines: int) -> int:
    """How many rows of a table are each line's: two at least, its beginning and its end."""
    return max(2, min(20, _ROWS // lines))


def _some(rows: Sequence[T], lines: int) -> Sequence[T]:
    """As many of a line's rows as are its own, evenly spaced, the first and the last among them."""
    most = _each(lines)
    return rows if len(rows) <= most else [rows[round((len(rows) - 1) * i / (most - 1))] for i in range(most)]
