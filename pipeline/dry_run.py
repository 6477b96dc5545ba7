"""What `electra prepare` would do, without doing it: units, bytes, expected rows and the time they take.

Rates and rows come from a sample of the corpus that is really prepared, on this machine, in a temporary folder
(`data_prep.estimate`); nothing is left behind and no Ray is started.
"""

from typing import Any

from data_prep import estimate
from data_prep.corpus import CorpusConfig
from data_prep.plan import make_plan
from data_prep.storage import folder
from pipeline.console import Console, duration
from pipeline.corpora import MAIN
from pipeline.experiment import Experiment
from pipeline.place import cores


def dry_run(experiment: Experiment, console: Console) -> dict[str, Any]:
    """Print the plan and the estimate; returns them as plain figures, those of `corpora` below their names. Raises as a
    preparation would on its inputs."""
    named = {name: _of(name, config, experiment, console) for name, config in experiment.corpus_configs().items()}
    return {**named.pop(MAIN), **({"corpora": named} if named else {})}


def _of(name: str, config: CorpusConfig, experiment: Experiment, console: Console) -> dict[str, Any]:
    of = f" of corpora.{name}" if name else ""
    plan = make_plan(config, experiment.seed)
    rows = []
    for number, source in enumerate(config.sources):
        files = [file for file in plan.files if file.source == number]
        units = [unit for unit in plan.units if unit.source == number]
        megabytes = sum(file.bytes for file in files) / 1e6
        rows.append([number, source.kind, len(files), f"{megabytes:,.1f}", len(units), source.weight or "–"])
    console.table(f"Input{of}", ["source", "kind", "files", "MB", "units", "weight"], rows)
    with console.stage("estimate", unit="MB"):
        found = estimate.estimate(config, plan)
    slots = cores(experiment.cluster)
    needed = estimate.space_needed(config, plan)
    free = folder(config.location).free_bytes() if config.location is not None else None
    console.table(
        f"Expected{of}",
        ["", "value"],
        [
            ["text", f"{found.text_bytes / 1e6:,.1f} MB, before duplicates go"],
            ["documents kept", f"{found.kept:.1%}"],
            ["tokens", f"{found.tokens:,}"],
            ["rows", f"{found.rows:,} of {config.seq_len}"],
            ["disk", f"{needed / 1e6:,.0f} MB" + ("" if free is None else f", {free / 1e6:,.0f} MB are free")],
            ["reading, cleaning, searching", f"{found.documents_rate:.1f} MB/s a core"],
            ["tokenizing and packing", f"{found.rows_rate:.1f} MB/s a core"],
            [f"time on {slots} cores", duration(found.seconds(slots))],
        ],
    )
    return {
        "units": found.units,
        "input_bytes": found.input_bytes,
        "text_bytes": found.text_bytes,
        "rows": found.rows,
        "tokens": found.tokens,
        "disk_bytes": needed,
        "cores": slots,
        "seconds": round(found.seconds(slots), 3),
        "documents_mb_per_second": round(found.documents_rate, 2),
        "rows_mb_per_second": round(found.rows_rate, 2),
    }
