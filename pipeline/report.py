"""The report of an experiment: one self-contained HTML page, the same numbers as JSON and CSV, and the main figure.

`OUT/report/`: report.html, report.json, scores.csv, runs.csv, curves.csv, curve.svg. A function of the experiment's
records and of the software that reads them: no clock, so the same results give the same bytes, and `pipeline.recheck`
can compute them again. An unfinished experiment gives a report that says what is missing; without one finished run
there is nothing to report.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.manifest import Manifest
from pipeline import coverage, gather, learning_signal, report_csv, rows_read, wording
from pipeline.analysis import Analysis, analyse
from pipeline.corpora import MAIN
from pipeline.gather import Contents, Run
from pipeline.origins import origins
from pipeline.page import page
from pipeline.published import MODELS
from pipeline.swept import choice

_PACKAGES = ("torch", "deepspeed", "ray", "transformers", "tokenizers", "numpy", "matplotlib", "mlflow")


def write(out: Path) -> Path:
    """Write the report of the experiment in `out`; returns the HTML file.

    DataError where there is no experiment, no finished run, or a record is broken.
    """
    files = render(out, describe_environment())
    folder = storage.make_folder(out / "report")
    for name, content in files.items():
        storage.write_bytes(folder / name, content)
    return folder / "report.html"


def render(out: Path, environment: Mapping[str, str]) -> dict[str, bytes]:
    """The report's files by name, as made on a machine and with software of this description. Errors as `write`."""
    from pipeline.drawings import draw

    contents = gather.read(out)
    analysis = analyse(contents)
    drawings = draw(contents, analysis)
    files = {
        "report.json": storage.json_bytes(as_json(contents, analysis, environment)),
        **report_csv.tables(contents, analysis),
        "report.html": page(contents, analysis, drawings, environment).encode(),
    }
    if analysis.suites:
        files["curve.svg"] = drawings[f"curve-{analysis.suites[0].name}"].encode()
    return files


def as_json(contents: Contents, analysis: Analysis, environment: Mapping[str, str]) -> dict[str, Any]:
    """Everything the page says, as plain data. Scores are fractions, FLOPs are model FLOPs."""
    corpora = {name: _corpus(manifest) for name, manifest in contents.manifests.items()}
    return {
        "name": contents.name,
        "summary": {suite.name: wording.summary(suite) for suite in analysis.suites},
        "missing": analysis.missing,
        "matching": asdict(analysis.matching),
        "rows_read": [asdict(one) for one in rows_read.alike(contents)],
        "suites": [asdict(suite) for suite in analysis.suites],
        "runs": [_run(run) for run in contents.runs],
        "first_stages": [_run(run) for run in contents.first_stages],
        "corpus": corpora.pop(MAIN, None),
        "corpora": corpora,
        "configuration": contents.config,
        "sweep": None if (found := choice(contents)) is None else asdict(found),
        "findings": [asdict(one) for one in analysis.findings],
        "deviations": [asdict(one) for one in analysis.deviations],
        "learning_signal": [asdict(one) for one in learning_signal.signals(contents)],
        "coverage": [asdict(row) for row in coverage.TABLE],
        "reference": [asdict(model) for model in MODELS],
        "environment": dict(environment),
    }


def _run(run: Run) -> dict[str, Any]:
    facts = ("name", "arm", "objective", "budget", "seed", "steps", "flops_per_step", "inherited", "part_of")
    began = [asdict(one) for one in origins(run.identity, run.placement)]
    found = {name: getattr(run, name) for name in facts}
    return found | {"last_step": run.last_step, "began_with": began, "done": run.done}


def _corpus(manifest: Manifest) -> dict[str, Any]:
    return {"sha256": manifest.sha256, **_without_lists(manifest.model_dump(mode="json"))}


def _without_lists(tree: dict[str, Any]) -> dict[str, Any]:
    """The manifest's totals, without shards and histograms."""
    return {
        name: _without_lists(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if not isinstance(value, list)
    }


def describe_environment() -> dict[str, str]:
    """Versions of what the results depend on, and this machine."""
    return {
        "Python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{_processor()}, {os.cpu_count()} logical cores",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or "unknown processor"
