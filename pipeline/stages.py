"""The stages of the road, one function each: what a verb does once its configuration is read.

A stage takes a `Place` (experiment, folder, console, and Ray on demand), calls the part that owns the work, shows its
progress and returns a small JSON-able result. Every stage resumes, so running one again costs little. Ray is started at
most once for a whole command, and not at all when nothing is left to run. Heavy imports stay inside the functions.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.config import ClusterConfig
from cluster.session import session
from data_prep import manifest as manifests
from data_prep import storage
from data_prep.errors import DataError, ElectraError
from pipeline import config as yaml_config
from pipeline import gather
from pipeline.console import Console, duration, quiet_libraries
from pipeline.experiment import Experiment
from pipeline.folder import Folder, open_folder
from pipeline.gather import CONFIG_NAME
from training.metrics import newest_line
from training.run_folder import is_done, last_events
from training.settings import RunSpec

if TYPE_CHECKING:
    from cluster.launch import Ranks

Result = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Place:
    """Where a stage works."""

    experiment: Experiment
    folder: Folder
    console: Console
    stack: ExitStack
    ranks: "Ranks | None" = None  # the processes that train together, where a launcher other than Ray started them
    ray_running: bool = field(default=False)
    worked: bool = field(default=False)  # whether any stage found something to do

    def start_ray(self) -> None:
        """Join the configured cluster, or start an embedded Ray that ends with this command; once."""
        if self.ray_running:
            return
        cluster = self.experiment.cluster
        num_cpus = cluster.num_cpus if cluster.address is not None else cores(cluster)
        started = time.monotonic()
        self.stack.enter_context(session(cluster.address, num_cpus))
        self.ray_running = self.worked = True
        where = cluster.address or "on this machine"
        self.console.say(f"ray: ready {where} in {duration(time.monotonic() - started)}")


def cores(cluster: ClusterConfig) -> int:
    """Logical CPUs of the embedded Ray: fewer cores than training workers must not mean waiting for ever."""
    return cluster.num_cpus or max(os.cpu_count() or 1, cluster.num_workers * cluster.threads_per_worker)


Stage = Callable[..., Result]  # of a Place, and of what the verb's own options are


def read_experiment(target: Path, overrides: Sequence[str]) -> Experiment:
    """The experiment in a YAML file, or the one an experiment folder was made by."""
    path = target / CONFIG_NAME if target.is_dir() and (target / CONFIG_NAME).exists() else target
    return yaml_config.load(path, overrides, Experiment)


def default_folder(target: Path, experiment: Experiment) -> Path:
    """Where results go without `--out`: the folder that was named, or runs/NAME."""
    return target if target.is_dir() else Path("runs") / experiment.name


def glue_overrides(glue_dir: Path | None) -> list[str]:
    """`--glue-dir` as overrides."""
    if glue_dir is None:
        return []
    if not glue_dir.is_dir():
        raise DataError(f"{glue_dir}: no such folder; --glue-dir names the one that holds the tasks' folders")
    return ["evaluation.suite=glue", f"evaluation.glue_dir={json.dumps(str(glue_dir.resolve()))}"]


def check_tasks(experiment: Experiment) -> None:
    """Find missing task data before any work."""
    from pipeline.evaluate import check_tasks as check

    check(experiment.evaluation)


@contextmanager
def open_place(experiment: Experiment, out: Path, console: Console, ranks: "Ranks | None" = None) -> Iterator[Place]:
    """Hold the experiment's folder; end what was started when the block ends."""
    quiet_libraries(offline=all(source.kind != "datasets" for source in experiment.corpus.sources))
    with open_folder(out, experiment) as folder, ExitStack() as stack:
        yield Place(experiment=experiment, folder=folder, console=console, stack=stack, ranks=ranks)


def timed(name: str, stage: Stage, place: Place) -> Result:
    """Run a stage and leave its beginning, end and duration in the event log and in the result."""
    started = time.monotonic()
    place.folder.event(name, "started")
    try:
        result = stage(place)
    except BaseException as error:
        place.folder.event(name, "stopped", seconds=_since(started), error=type(error).__name__)
        raise
    place.folder.event(name, "done", seconds=_since(started))
    return {**result, "seconds": _since(started)}


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


# --- the stages -------------------------------------------------------------------------------------------------------


def prepare(place: Place) -> Result:
    """The corpus, unit by unit."""
    from pipeline.prepare import prepare as prepare_corpus

    experiment, console = place.experiment, place.console
    manifest = prepare_corpus(
        experiment.corpus,
        place.folder.corpus,
        experiment.seed,
        console=console,
        on_event=lambda event, **details: place.folder.event("prepare", event, **details),
        start_ray=place.start_ray,
    )
    return {
        "manifest_sha256": manifest.sha256,
        "documents": manifest.documents.out,
        "train_rows": manifest.train.rows,
        "heldout_rows": manifest.heldout.rows,
        "train_tokens": manifest.train.tokens,
    }


def evaluate(place: Place) -> Result:
    """Every finished run on every task of the suite."""
    from pipeline.evaluate import evaluate as evaluate_runs

    config = place.experiment.evaluation
    results = evaluate_runs(place.folder.path, config, console=place.console, before_work=place.start_ray)
    return {"suite": config.suite, "results": len(results)}


def train(place: Place, profile: int = 0) -> Result:
    """Every run that is not done, from its newest checkpoint, mirrored into MLflow as it goes. Of the first of them, so
    many steps as `profile` says are traced.

    The bar counts model FLOPs: a step of one arm costs more than a step of another, so only they give an honest ETA.
    """
    folder = place.folder
    specs = place.experiment.runs(manifests.load(folder.corpus), folder.corpus, folder.runs)
    finished = [spec for spec in specs if is_done(folder.runs / spec.name, spec)]
    result = {"runs": [spec.name for spec in specs], "trained": len(specs) - len(finished)}
    if len(finished) == len(specs):
        place.console.say(f"train: all {len(specs)} runs are done")
        return result
    train_runs = _launched(place)
    done = {spec.name: spec.steps * spec.flops_per_step for spec in finished}
    total = sum(spec.steps * spec.flops_per_step for spec in specs)
    scale, unit = _unit(total)
    mirror, beginnings = _Mirror(place), _Beginnings(place, specs)
    with place.console.stage("train", total / scale, unit) as stage:
        stage.update(sum(done.values()) / scale)

        def on_progress(spec: RunSpec, line: dict[str, Any]) -> None:
            beginnings.tell(spec, line)
            done[spec.name] = line["step"] * spec.flops_per_step
            step = f"{line['step']}/{spec.steps}"
            stage.update(sum(done.values()) / scale, run=spec.name, step=step, **_figures(line["values"]))
            mirror.now_and_then()

        train_runs(specs, folder.corpus, folder.runs, place.experiment.cluster, on_progress, profile)
        stage.update(total / scale)
    trained = [spec.name for spec in specs if spec not in finished]
    _warn_degenerate(place, trained)
    if profile:
        _show_profile(place, folder.runs / trained[0])
    return result


def _launched(place: Place) -> Callable[..., None]:
    """What trains runs: the processes that this is one of, this process alone, or workers that Ray starts."""
    place.worked = True
    if place.ranks is not None:
        return place.ranks.train_runs
    if place.experiment.cluster.num_workers == 0:
        from cluster.launch import alone

        return alone().train_runs
    from cluster.trainer import train_runs

    place.start_ray()
    return train_runs


def _show_profile(place: Place, run: Path) -> None:
    """What took most time of the steps that were traced, and where the trace lies."""
    from training.profile import FOLDER, top

    place.console.say(f"profile: {run.name}: {shown(run / FOLDER)}")
    for line in top(run):
        place.console.say(f"  {line}")


def _warn_degenerate(place: Place, runs: Sequence[str]) -> None:
    """Which runs ended with a network that learned nothing: their loss may look healthy."""
    for run in runs:
        if verdict := gather.read_done(place.folder.runs / run).get("degenerate"):
            place.console.warn(f"{run}: at the end of training {verdict}")


class _Beginnings:
    """Says what a run's networks began with, and what none of that held, with the first line of the attempt that filled
    them; of attempts that resumed there is nothing to say."""

    def __init__(self, place: Place, specs: Sequence[RunSpec]) -> None:
        self._place = place
        lines = {spec.name: newest_line(place.folder.runs / spec.name) for spec in specs}
        self._told = {name: line["attempt"] for name, line in lines.items() if line is not None}

    def tell(self, spec: RunSpec, line: dict[str, Any]) -> None:
        """Of the attempt that has written `line`, once."""
        if self._told.get(spec.name) == line["attempt"]:
            return
        self._told[spec.name] = line["attempt"]
        for event in last_events(self._place.folder.runs / spec.name):
            if event["event"] == "weights":
                self._place.console.say(f"train: {spec.name}: {_first_weights(event)}")


def _first_weights(event: dict[str, Any]) -> str:
    """`its generator began with …; random: …` of an event of `training.first_weights`."""
    folders = [
        shown(Path(given["folder"])) + ("" if given["vocabulary"] else " (its vocabulary is not known beyond its size)")
        for given in event["from"]
    ]
    lacked = f"; random: {', '.join(event['lacked'])}" if event["lacked"] else ""
    return f"its {event['network']} began with {' and '.join(folders) or 'no weights of its own'}{lacked}"


# What is shown of a metric line, under which name and how; a line has those that there are.
_FIGURES: dict[str, tuple[str, Callable[[float], float | str]]] = {
    "train/loss": ("loss", float),
    "heldout/loss": ("heldout", float),
    "tokens_per_second": ("tokens/s", round),
    "flops_per_second": ("GFLOPs/s", lambda value: value / 1e9),
    "mfu": ("MFU", "{:.1%}".format),
    "data_wait": ("data wait", "{:.2%}".format),
    "communication_wait": ("communication wait", "{:.2%}".format),
    "memory_peak": ("memory peak", lambda value: f"{value / 2**30:.2f} GiB"),
}


def _figures(values: dict[str, float]) -> dict[str, float | str]:
    return {short: form(values[name]) for name, (short, form) in _FIGURES.items() if name in values}


def _unit(flops: float) -> tuple[float, str]:
    """The unit in which `flops` has one to three digits before the point."""
    for scale, unit in ((1e18, "EFLOPs"), (1e15, "PFLOPs"), (1e12, "TFLOPs"), (1e9, "GFLOPs")):
        if flops >= scale:
            return scale, unit
    return 1e6, "MFLOPs"


class _Mirror:
    """Sends new metric lines to MLflow every half minute. A store that fails is told of once: training goes on, and
    the tracking stage at the end tries again and says what is wrong."""

    def __init__(self, place: Place, every: float = 30.0) -> None:
        self._place, self._every = place, every
        self._next = time.monotonic() + every
        self._failed = False

    def now_and_then(self) -> None:
        from pipeline.tracking import sync

        if self._failed or time.monotonic() < self._next:
            return
        try:
            summary = sync(self._place.folder.path, console=self._place.console, training=True)
            self._failed = not summary.reachable
        except ElectraError as error:
            self._place.console.warn(str(error))
            self._failed = True
        self._next = time.monotonic() + self._every


def report(place: Place) -> Result:
    """One HTML file with curves and tables, and the same as JSON."""
    from pipeline.report import write

    before = _hash(place.folder.report / "report.html")
    with place.console.stage("report"):
        path = write(place.folder.path)
    place.worked |= _hash(path) != before
    place.console.say(f"report: {shown(path)}")
    return {"report": str(path)}


def _hash(path: Path) -> str | None:
    return storage.sha256_of(path) if path.exists() else None


def track(place: Place) -> Result:
    """Mirror what is new into MLflow."""
    from pipeline.tracking import sync

    with place.console.stage("track", unit="values") as stage:
        summary = sync(place.folder.path, console=place.console)
        stage.advance(summary.points, runs=summary.runs, finetunings=summary.finetunings)
    place.worked |= summary.changed > 0
    return {"uri": summary.uri, "reachable": summary.reachable, "runs": summary.runs}


def export(place: Place, to: Path | None = None, run: str | None = None) -> Result:
    """The last checkpoint of the run named, or of the largest that detects replaced tokens, as Hugging Face folders
    below `to`, proved against the training model."""
    from pipeline.export import export as export_checkpoint

    target = to.absolute() if to is not None else place.folder.export
    with place.console.stage("export"):
        exported = export_checkpoint(place.folder.path, target, run)
    place.worked |= any(one.new for one in exported)
    for one in exported:
        place.console.say(
            f"export: {shown(target / one.folder)}: {one.architecture}{_without(one.left_behind)}, largest logit "
            f"difference from the training model {one.largest_difference:.1e}"
            + ("" if one.new else " when it was made; its files are unchanged")
        )
    return {"exported": [asdict(one) for one in exported]}


def _without(heads: Sequence[str]) -> str:
    return f" without the head{'s' * (len(heads) > 1)} {', '.join(heads)}" if heads else ""


# What a verb runs, and the verb that comes next.
VERBS: dict[str, tuple[tuple[Stage, ...], str]] = {
    "prepare": ((prepare,), "train"),
    "train": ((train, track), "evaluate"),
    "evaluate": ((evaluate, track), "report"),
    "report": ((report, track), "export"),
    "export": ((export,), ""),
}


def run(verb: str, place: Place, **options: Any) -> Result:
    """Run a verb's stages, the first with the verb's own `options`, and say what to do next. The result is the first
    stage's."""
    (first, *rest), following = VERBS[verb]
    result = timed(first.__name__, partial(first, **options), place)
    for stage in rest:
        timed(stage.__name__, stage, place)
    if following:
        place.console.say(f"next: electra {following} {shlex.quote(shown(place.folder.path))}")
    return result


def shown(path: Path) -> str:
    """The path as a person would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
