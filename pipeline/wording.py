"""How the report puts numbers into words: formats, descriptions of figures, and the summary.

The summary is computed from the intervals. It calls a difference resolved only where its paired 95 % interval leaves
out zero, never names a winner, and says what one pre-training seed cannot tell.
"""

from collections.abc import Sequence

from pipeline import coverage
from pipeline.coverage import Kind
from pipeline.statistics import Multiplier
from pipeline.suites import ArmMultiplier, Difference, Figure, Published, Suite, TaskFacts

# What objectives are called where their own names read badly, and the paper's section or appendix they come from.
OBJECTIVES = {
    "electra": "ELECTRA (Clark et al. 2020)",
    "electra_15": "ELECTRA 15 % (Clark et al. 2020, section 3.5)",
    "electra_adversarial": "adversarial ELECTRA (Clark et al. 2020, appendix F)",
    "electra_two_stage": "two-stage ELECTRA (Clark et al. 2020, section 3.2)",
    "replace_mlm": "Replace MLM (Clark et al. 2020, section 3.5)",
    "all_tokens_mlm": "All-Tokens MLM (Clark et al. 2020, section 3.5)",
    "mlm": "masked language modelling (Clark et al. 2020, the baseline)",
    "bert": "BERT (Devlin et al. 2019)",
    "roberta": "RoBERTa (Liu et al. 2019)",
}
_ARMS = {
    "electra_15": "ELECTRA 15 %",
    "electra_adversarial": "ELECTRA adversarial",
    "electra_two_stage": "ELECTRA two-stage",
    "replace_mlm": "Replace MLM",
    "all_tokens_mlm": "All-Tokens MLM",
}
LOSSES = {
    "mlm_loss": "masked-token loss",
    "replaced_loss": "loss on replaced tokens",
    "all_tokens_loss": "all-tokens loss",
    "rtd_loss": "replaced-token loss",
    "nsp_loss": "next-sentence loss",
    "reward": "generator's reward",
    "rtd_auc": "replaced-token AUC",
}
LOSS_UNITS = {
    "mlm_loss": "nats per masked token",
    "replaced_loss": "nats per masked token",
    "all_tokens_loss": "nats per token",
    "rtd_loss": "nats per judged token",
    "nsp_loss": "nats per pair",
    "reward": "nats per masked token",
    "rtd_auc": "area under ROC curve",
}
_TITLES = {"glue": "GLUE tasks", "probes": "Built-in probes", "blimp": "BLiMP", "blimp_generator": "BLiMP, generators"}
_METRICS = {
    "accuracy": "accuracy",
    "matthews": "Matthews correlation",
    "spearman": "Spearman correlation",
    "pearson": "Pearson correlation",
    "f1": "F1",
    "best_f1": "F1 at the best threshold",
}
_SCORERS = {
    "pll": "by pseudo-log-likelihood (pll) of heads that fill masks",
    "rtd": "by the summed log-probability of being original (rtd) of heads that detect replaced tokens",
}
FEW = 3  # comparisons that the summary tells of one by one; of more, those that are resolved
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


# --- numbers ----------------------------------------------------------------------------------------------------------


def flops_text(value: float, digits: int | None = None) -> str:
    """`4 × 10¹¹`: three digits without zeros at the end, or exactly `digits`."""
    mantissa, exponent = f"{value:.{(digits or 3) - 1}e}".split("e")
    short = mantissa if digits else mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(_POWERS)
    return power if short == "1" else f"{short} × {power}"


def number_text(value: float) -> str:
    """A round number on an axis: as it is written out between a thousandth and ten thousand, else as `flops_text`."""
    return f"{value:,g}" if 1e-3 <= value < 1e4 else flops_text(value)


def points(value: float) -> str:
    """A score of 0.613 as `61.3`; with a true minus sign."""
    return f"{100 * value:.1f}".replace("-", "−")


def change(value: float) -> str:
    """A difference of 0.0123 as `+1.23`: an end of an interval close to zero must not read as zero."""
    return f"{100 * value:+.2f}".replace("-", "−")


def interval(figure: Figure) -> str:
    """`59.8 to 62.7`."""
    return f"{points(figure.low)} to {points(figure.high)}"


def score(figure: Figure) -> str:
    """A score × 100 with its interval as the small print of a table's cell."""
    return f"{points(figure.value)}\n{interval(figure)}"


def percent(share: float) -> str:
    """A signed share of 0.0012 as `+0.12 %`."""
    return f"{100 * share:+.2f} %".replace("-", "−")


def count(value: float) -> str:
    """`12,345`, rounded to an integer."""
    return f"{value:,.0f}"


def hours_text(hours: float) -> str:
    """`0.0208`, `3.47`, `1,230`: three digits."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def arm_name(label: str) -> str:
    """An arm in tables and plots: the name it was given, or that of its objective in words."""
    return _ARMS.get(label, label)


def names(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def covered(seeds: int, kind: Kind) -> str:
    """In how many simulated experiments with so many pre-training seeds an interval of this kind held the truth."""
    found = coverage.of(seeds)
    return "no claim: one seed" if found is None else f"{100 * found.share(kind):.0f} % at {found.seeds} seeds"


# --- suites -----------------------------------------------------------------------------------------------------------


def score_label(tasks: Sequence[TaskFacts]) -> str:
    """What a score axis over these tasks measures."""
    metrics = sorted({task.metric for task in tasks})
    if len(metrics) == 1:
        return f"{_METRICS[metrics[0]]}{', %' if metrics == ['accuracy'] else ' × 100'}"
    return "score (accuracy in %, others × 100)" if len(metrics) > 2 else f"score ({_both(metrics)})"


def _both(metrics: Sequence[str]) -> str:
    return ", ".join(f"{metric} {'in %' if metric == 'accuracy' else '× 100'}" for metric in metrics).replace(
        "matthews", "Matthews"
    )


def suite_name(suite: Suite) -> str:
    """What a suite is called."""
    return _TITLES.get(suite.name, suite.name)


def suite_title(suite: Suite) -> str:
    """The heading of a suite's section."""
    return f"{suite_name(suite)}: mean of {_over(suite)}"


def _over(suite: Suite) -> str:
    """What a suite's mean is over."""
    tasks = [task.name for task in suite.in_mean]
    return f"{len(tasks)} paradigms" if suite.wide else names(tasks)


def suite_note(suite: Suite) -> str:
    """What the suite is and is not."""
    subset = [task.name for task in suite.tasks if task.subset]
    which = "all" if suite.wide and len(subset) == len(suite.tasks) else names(subset) if subset else ""
    cut = f" Of {which} a declared subset of the official data was used." if subset else ""
    if suite.name == "probes":
        return (
            "Small tasks made from held-out documents of this corpus, for comparing the arms of one experiment with "
            f"one another. They are not GLUE, and no score here can be laid beside a published one.{cut}"
        )
    if suite.name.startswith("blimp"):
        how = names([_SCORERS[scorer] for scorer in suite.scorers])
        return (
            f"Minimal pairs, without fine-tuning: the share whose good sentence scores higher, {how}. A tie is no hit, "
            f"and chance is 50. Scores of different scorers are answers to different questions.{cut}"
        )
    metrics = ", ".join(f"{task.name}: {_METRICS[task.metric]}" for task in suite.in_mean)
    if suite.name != "glue":
        return f"Scores on the development set ({metrics}).{cut}"
    count_ = len(suite.in_mean)
    what = "the eight GLUE tasks of the ELECTRA paper" if count_ == 8 else f"{count_} of the GLUE tasks"
    return f"Scores on the development sets ({metrics}). This is a mean of {what}, not the GLUE score.{cut}"


def published_flops(one: Published) -> str:
    """The FLOPs of a model that is no arm, and whose word they are."""
    if one.flops is None:
        return "not known"
    return f"{flops_text(one.flops)}\n{'declared' if one.declared else 'counted'}"


# --- summary ----------------------------------------------------------------------------------------------------------


def summary(suite: Suite) -> list[str]:
    """Sentences on what the suite's scores show and what they do not."""
    budgets = [cell.budget for cell in suite.cells]
    budget = max(set(budgets), key=lambda one: (budgets.count(one), one))  # the largest at which most arms are there
    which = " the largest budget," if len(set(budgets)) > 1 else ""
    if budget < max(budgets):
        which = " the largest budget that most arms were evaluated at,"
    cells = sorted((cell for cell in suite.cells if cell.budget == budget), key=lambda cell: -cell.mean.value)
    scores = [
        f"{points(cell.mean.value)} for {arm_name(cell.arm)} (95 % interval {interval(cell.mean)})" for cell in cells
    ]
    tasks = _over(suite)
    sentences = [
        f"At {flops_text(budget)} model FLOPs,{which} the mean score × 100 over "
        f"{tasks} was {names(scores)}; a constant answer scores {points(suite.floor)}."
    ]
    if weak := [arm_name(cell.arm) for cell in cells if cell.mean.low <= suite.floor <= cell.mean.high]:
        sentences.append(f"{names(weak)}: not distinguishable from a constant answer.")
    if worse := [arm_name(cell.arm) for cell in cells if cell.mean.high < suite.floor]:
        sentences.append(f"{names(worse)}: worse than a constant answer.")
    if suite.tuned and (degenerate := sum(cell.degenerate for cell in suite.cells)):
        total = sum(cell.finetunings for cell in suite.cells)
        sentences.append(
            f"{degenerate} of {total} fine-tunings gave one answer to every example; they are counted as they are."
        )
    own = [difference for difference in suite.differences if difference.budget == budget]
    told = [one for one in own if one.resolved] if len(own) > FEW else own
    sentences += [_difference(difference) for difference in told]
    if rest := [arm_name(one.arm) for one in own if one not in told]:
        sentences.append(
            f"The difference{'s' * (len(rest) > 1)} of {names(rest)} from {arm_name(own[0].baseline)} there "
            f"{'are' if len(rest) > 1 else 'is'} within the noise the intervals cover."
        )
    return sentences + _multipliers(suite.multipliers)


def _multipliers(found: Sequence[ArmMultiplier]) -> list[str]:
    """A sentence each; where there are many, one for all that do not exclude equal need."""
    told = [one for one in found if not _spans_one(one.multiplier)] if len(found) > FEW else found
    rest = [arm_name(one.arm) for one in found if one not in told]
    baseline = arm_name(found[0].baseline) if found else ""
    sentences = [multiplier_sentence(one) for one in told]
    if rest:
        sentences.append(f"No compute multiplier against {baseline} is resolved for {names(rest)}: none excludes 1.")
    return sentences


def _spans_one(one: Multiplier) -> bool:
    """Whether its interval, or its absence, allows equal need."""
    return one.value is None or ((one.low is None or one.low <= 1) and (one.high is None or one.high >= 1))


def drawn(suites: Sequence[Suite]) -> str:
    """What the intervals are over: `documents (…) and 2 fine-tuning seeds`."""
    cells = [cell for suite in suites for cell in suite.cells]
    grouped = {suite.grouped for suite in suites}
    documents = "documents (all examples of a document together)"
    parts = [documents if grouped == {True} else f"{documents} or examples" if True in grouped else "examples"]
    tuned = [count for suite in suites if suite.tuned for cell in suite.cells for count in cell.finetune_seeds]
    for what, counts in (("pre-training", [cell.seeds for cell in cells]), ("fine-tuning", tuned)):
        if max(counts, default=1) > 1:
            parts.append(f"{_from_to(counts)} {what} seeds")
    return names(parts)


def _from_to(counts: Sequence[int]) -> str:
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def caution(suites: Sequence[Suite]) -> str:
    """What the intervals cover and what they do not, from the seeds there are."""
    cells = [cell for suite in suites for cell in suite.cells]
    covers = f"The intervals are over {drawn(suites)}"
    fewest = min(cell.seeds for cell in cells)
    if fewest > 1:
        return f"{covers}: they cover pre-training as far as the few seeds of an arm can tell.{_simulated(fewest)}"
    once = list(
        dict.fromkeys(f"{arm_name(cell.arm)} at {flops_text(cell.budget)}" for cell in cells if cell.seeds == 1)
    )
    everywhere = all(cell.seeds == 1 for cell in cells)
    who = "Every arm was" if everywhere else f"{names(once)} {'was' if len(once) == 1 else 'were'}"
    return (
        f"{covers}, and cover nothing else. {who} pre-trained once{' at a budget' if everywhere else ''}, so there "
        "they cannot tell an objective from the luck of one seed, and no arm is declared better here."
    )


def _simulated(seeds: int) -> str:
    found = coverage.of(seeds)
    if found is None:
        return ""
    return (
        f" In {coverage.EXPERIMENTS} simulated experiments with {found.seeds} seeds, such intervals held the truth in "
        f"{100 * found.score:.0f} % (scores), {100 * found.difference:.0f} % (differences) and "
        f"{100 * found.multiplier:.0f} % (compute multipliers, of which {100 * found.closed:.0f} % had two ends)."
    )


def _difference(one: Difference) -> str:
    figure = one.difference
    relation = "more" if figure.value >= 0 else "fewer"
    return (
        f"{arm_name(one.arm)} scored {change(abs(figure.value)).lstrip('+')} points {relation} than "
        f"{arm_name(one.baseline)} there (95 % "
        f"interval of the paired difference {change(figure.low)} to {change(figure.high)}), {reading(one)}."
    )


def reading(one: Difference) -> str:
    """A difference as its interval allows to read it."""
    return "more than what the interval covers explains" if one.resolved else "within the noise the interval covers"


def multiplier_text(one: Multiplier) -> str:
    """`1.73 ×`, `at least 3 ×`."""
    if one.value is None:
        return "not defined"
    return f"{one.value:.2f} ×" if one.kind == "equal" else f"{one.kind} {one.value:.2f} ×"


def multiplier_interval(one: Multiplier) -> str:
    """Its 95 % interval, with open ends in words."""
    if one.low is None and one.high is None:
        return "open at both ends"
    if one.low is None:
        return f"up to {one.high:.2f} ×, open below"
    return f"from {one.low:.2f} ×, open above" if one.high is None else f"{one.low:.2f} to {one.high:.2f} ×"


def multiplier_sentence(one: ArmMultiplier) -> str:
    """The compute multiplier in a sentence, as far as the curves define it."""
    found, arm, baseline = one.multiplier, arm_name(one.arm), arm_name(one.baseline)
    if found.value is None:
        return f"The curves of {arm} and {baseline} share no score, so no compute multiplier is defined."
    verb = {"equal": "", "at least": "at least ", "at most": "at most "}[found.kind]
    if found.low is None and found.high is None:
        return f"The compute multiplier of {arm} against {baseline} is not resolved here."
    sentence = (
        f"For a mean of {points(found.score)}, {baseline} needs {verb}{found.value:.2f} times the FLOPs that "
        f"{arm} needs (95 % interval {multiplier_interval(found)})"
    )
    return f"{sentence}{', which does not exclude equal need' if _spans_one(found) else ''}."
