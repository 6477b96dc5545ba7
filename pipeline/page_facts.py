"""The report's sections on what was run: deviations from the protocol, limits, corpus, configuration.

Part of the page (`pipeline.page`): layout only, every text escaped.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

from data_prep.manifest import Manifest
from pipeline import wording
from pipeline.analysis import Analysis
from pipeline.deviations import SUBJECTS
from pipeline.gather import Contents
from pipeline.matching import NOTES
from pipeline.page_compute import began_with
from pipeline.page_parts import facts, table
from pipeline.swept import choice
from pipeline.wording import flops_text


def what_ran(contents: Contents, analysis: Analysis, environment: Mapping[str, str]) -> str:
    """Corpus, configuration, software and machine."""
    parts = ["<h2>What was run, and on what</h2>"]
    for name, corpus in contents.manifests.items():
        parts += [f"<h3>Corpus{f' {escape(name)}' if name else ''}</h3>", _corpus(corpus)]
    config = contents.config
    found = choice(contents)
    rates = {} if found is None else {one.arm: {"learning_rate": one.rate} for one in found.arms}
    arms = [
        (f"arm {name}", _flat({**arm, **rates.get(name, {})}))
        for name, arm in zip(contents.arms, config.get("arms", []), strict=False)
    ]
    sections = ("model", "training", "cluster")
    flat = [(name, _flat(config[name])) for name in sections if isinstance(config.get(name), dict)]
    protocols = [(f"fine-tuning, {suite.name}", _flat(suite.protocol)) for suite in analysis.suites]
    parts += ["<h3>Configuration</h3>", facts([*flat, *arms, *protocols])]
    parts += ["<h3>Software and machine of this report</h3>", facts(sorted(environment.items()))]
    return "\n".join(parts)


def _corpus(corpus: Manifest) -> str:
    documents = corpus.documents
    rejected = ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in sorted(documents.rejected.items()))
    train, heldout = corpus.train, corpus.heldout
    return facts(
        [
            ("documents read", f"{documents.documents_in:,}"),
            ("documents kept", f"{documents.out:,} ({documents.text_bytes / 1e6:.1f} MB of text)"),
            ("rejected", rejected or "none"),
            ("trained on", f"{documents.train:,} documents, {train.rows:,} rows, {train.tokens:,} tokens"),
            ("held out", f"{documents.heldout:,} documents, {heldout.rows:,} rows, {heldout.tokens:,} tokens"),
            ("rows", f"{corpus.seq_len} tokens, layout {corpus.layout}"),
            ("vocabulary", f"{corpus.vocab_size:,} entries, tokenizer sha256 {corpus.tokenizer_sha256}"),
            ("manifest", f"sha256 {corpus.sha256}"),
        ]
    )


def _flat(section: Mapping[str, Any]) -> str:
    """Its settings in words, without those that are empty."""
    return ", ".join(
        f"{key.replace('_', ' ')} {_flat(value) if isinstance(value, dict) else value}"
        for key, value in section.items()
        if value not in (None, "", [], {})
    )


def deviations_section(contents: Contents, analysis: Analysis) -> str:
    """What was done otherwise than the protocol asks, and what of it was checked."""
    told = [f"<li>{escape(one.subject)}: {escape(one.sentence)}</li>" for one in analysis.deviations]
    listed = f"<ul>{''.join(told)}</ul>" if told else "<p>None.</p>"
    parts = ["<h2>Deviations from the protocol</h2>", listed]
    if analysis.findings:
        marks = {True: "holds", False: "does not hold"}
        rows = [
            [SUBJECTS[one.kind], "to know" if one.kind in NOTES else marks[one.ok], one.sentence]
            for one in analysis.findings
        ]
        note = "What makes arms comparable, as `electra experiment check` finds it in the records."
        head = [("checked", ""), ("", ""), ("what was found", "")]
        parts += ["<h3>Matching</h3>", table(note, head, rows, words=(0, 1, 2), group_by=0)]
    return "\n".join(parts)


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
    if unpaid := [run.name for run in contents.finished if any(one.step is None for one in began_with(run))]:
        limits.append(
            f"{wording.names(unpaid)} began with weights whose cost is not known: no comparison with them is at equal "
            "compute."
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
