"""The command line: `electra VERB CONFIG [KEY=VALUE]...`, one call each into `pipeline.stages`.

Guarantees: `--help` imports nothing heavy; a user's mistake is one sentence on stderr and the exit code its error
carries (2 configuration, 3 surroundings, 4 data, 5 checkpoint, 9 a failed check), what the operating system refuses
anywhere, in a worker too, is 3, an interruption is 130, anything unforeseen is 1 with a traceback on `--debug`; with
`--json` stdout carries one JSON object and nothing else.
"""

import json
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from data_prep.errors import ElectraError

if TYPE_CHECKING:
    from cluster.launch import Ranks

QUICKSTART = Path(__file__).resolve().parent.parent / "configs" / "quickstart.yaml"

app = typer.Typer(
    help="Pre-train with ELECTRA, BERT and RoBERTa at matched compute: text in, FLOPs-versus-score curves and "
    "Hugging Face checkpoints out. Every verb resumes: the same command again does only what is missing.",
    epilog="Start here: electra quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="An experiment file, or the folder of an earlier experiment.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, as training.global_batch=64.")
]
Out = Annotated[Path | None, typer.Option(help="The experiment's folder.", show_default="runs/NAME")]
GlueDir = Annotated[
    Path | None, typer.Option(help="Evaluate on the GLUE tasks in this folder instead of the built-in probes.")
]
TRACKS = (
    "Metrics go to MLflow at MLFLOW_TRACKING_URI where that is set, otherwise to mlflow.db in the experiment's folder."
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@app.command(epilog=f"{TRACKS}\n\nExample: electra quickstart --out /tmp/first")
def quickstart(
    overrides: Overrides = None,
    config: Annotated[
        Path, typer.Option(help="Another experiment file.", show_default="configs/quickstart.yaml")
    ] = QUICKSTART,
    out: Out = None,
    glue_dir: GlueDir = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """The whole road on this machine: prepare, train, evaluate, track, report, export."""
    _run("quickstart", config, overrides, out, json_, debug, glue_dir=glue_dir)


@app.command(epilog="Example: electra prepare configs/quickstart.yaml corpus.seq_len=256 --out runs/long")
def prepare(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print units, bytes, expected rows and time; write nothing.")
    ] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Turn the corpus's sources into tokenized, packed WebDataset shards with a manifest."""
    if not dry_run:
        _run("prepare", config, overrides, out, json_, debug)
        return
    with _errors(json_, debug):
        from pipeline.console import Console
        from pipeline.dry_run import dry_run as expect
        from pipeline.place import read_experiment

        experiment = read_experiment(config, overrides or [])
        result = expect(experiment, Console(sys.stderr if json_ else sys.stdout))
        if json_:
            print(json.dumps({"verb": "prepare", "exit_code": 0, "dry_run": True, **result}))


@app.command(epilog="Example: electra verify runs/quickstart")
def verify(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A corpus, or the folder of an experiment.")],
    quick: Annotated[bool, typer.Option("--quick", help="Compare names, sizes and counts; read no content.")] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Read a prepared corpus again and name every missing, extra, cut or altered file."""
    with _errors(json_, debug):
        from pipeline.console import Console
        from pipeline.verify import verify as check

        result = check(folder, quick=quick, console=Console(sys.stderr if json_ else sys.stdout))
        if json_:
            print(json.dumps({"verb": "verify", "exit_code": 0, **result}))


@app.command(epilog=f"{TRACKS}\n\nExample: electra train configs/quickstart.yaml cluster.num_workers=1")
def train(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    launcher: Annotated[
        Literal["ray", "env"],
        typer.Option(
            help="ray starts cluster.num_workers processes. env: this is one of several processes that torchrun, "
            "deepspeed or srun has started; the corpus must have been prepared."
        ),
    ] = "ray",
    profile: Annotated[
        int, typer.Option(min=0, help="Trace so many steps of the first run and print what took most time.")
    ] = 0,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Train every arm at every budget; finished runs are kept, interrupted ones resume."""
    _run("train", config, overrides, out, json_, debug, launcher=launcher, profile=profile)


@app.command(epilog=f"{TRACKS}\n\nExample: electra evaluate runs/quickstart --glue-dir ~/data/glue")
def evaluate(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    glue_dir: GlueDir = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Fine-tune every trained checkpoint on the tasks of a suite and record its scores."""
    _run("evaluate", config, overrides, out, json_, debug, glue_dir=glue_dir)


@app.command(epilog=f"{TRACKS}\n\nExample: electra report runs/quickstart")
def report(
    config: Config, overrides: Overrides = None, out: Out = None, json_: Json = False, debug: Debug = False
) -> None:
    """Mirror the metrics into MLflow and write the HTML report of score against training FLOPs."""
    _run("report", config, overrides, out, json_, debug)


@app.command(epilog="Example: electra export runs/quickstart --run electra-4.00e+11-s0 --to /tmp/model")
def export(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    run: Annotated[str | None, typer.Option(help="The run to export.", show_default="the largest detector")] = None,
    to: Annotated[Path | None, typer.Option(help="Where the folders go.", show_default="OUT/export")] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Write a checkpoint's networks as Hugging Face model folders, reloaded and compared."""
    _run("export", config, overrides, out, json_, debug, run=run, to=to)


@app.command("config", epilog="Example: electra config configs/quickstart.yaml budgets.0=1e12")
def show_config(config: Config, overrides: Overrides = None, json_: Json = False, debug: Debug = False) -> None:
    """Check an experiment file and print it with every default spelled out."""
    with _errors(json_, debug):
        from pipeline import config as yaml_config
        from pipeline.place import read_experiment

        experiment = read_experiment(config, overrides or [])
        print(json.dumps(experiment.model_dump(mode="json")) if json_ else yaml_config.dump(experiment).rstrip())


def _run(
    verb: str,
    config: Path,
    overrides: list[str] | None,
    out: Path | None,
    json_: bool,
    debug: bool,
    *,
    glue_dir: Path | None = None,
    launcher: str = "ray",
    **options: Any,
) -> None:
    with _errors(json_, debug) as where:
        if launcher == "env":
            from cluster.launch import join

            where.ranks = join()
            if where.ranks.rank > 0:
                where.ranks.follow()
                return
        from pipeline import place as places
        from pipeline import quickstart, stages
        from pipeline.console import Console

        settings = [*(overrides or []), *places.glue_overrides(glue_dir)]
        experiment = places.read_experiment(config, settings)
        if verb in ("quickstart", "evaluate"):
            places.check_tasks(experiment)
        where.folder = folder = out or places.default_folder(config, experiment)
        console = Console(sys.stderr if json_ else sys.stdout)
        with places.open_place(experiment, folder, console, where.ranks) as place:
            result = quickstart.road(place) if verb == "quickstart" else stages.run(verb, place, **options)
        if json_:
            print(json.dumps({"verb": verb, "exit_code": 0, "out": str(folder.absolute()), **result}))


@dataclass(slots=True)
class _Where:
    """What the end of a command needs to know of it."""

    folder: Path | None = None  # stands in for the path of an error that names none, as a failed write does not
    ranks: "Ranks | None" = None  # the processes that it is one of


@contextmanager
def _errors(json_: bool, debug: bool) -> Iterator[_Where]:
    """End the process as DESIGN's exit codes say; the sentence goes to stderr, and to stdout as JSON if asked for. Of
    several processes that fail together one says it, and all end alike."""
    where = _Where()
    try:
        yield where
        if where.ranks is not None:
            where.ranks.leave()
    except typer.Exit:
        raise
    except BrokenPipeError:  # typer ends this process with 1
        if where.ranks is not None:
            where.ranks.fail("output closed", 1)
            where.ranks.leave()
        raise
    except KeyboardInterrupt:
        _end("interrupted; the same command again resumes", 130, json_, debug=False, ranks=where.ranks)
    except ElectraError as error:
        _end(str(error), error.exit_code, json_, debug, ranks=where.ranks)
    except Exception as error:
        causes = list(_causes(error))
        refusal = next((sentence for cause in causes if (sentence := _refusal(cause, where.folder))), None)
        _end(refusal or _unforeseen(causes[0]), 3 if refusal else 1, json_, debug, ranks=where.ranks)


def _causes(error: BaseException, above: tuple[BaseException, ...] = ()) -> Iterator[BaseException]:
    """What led to `error`, innermost first, then `error`: Ray hands a worker's exception on inside its own ones."""
    nested = [error.__cause__, getattr(error, "cause", None), getattr(error, "_base_exc", None)]
    failures = getattr(error, "worker_failures", None)
    nested += failures.values() if isinstance(failures, dict) else []
    for one in nested:
        if isinstance(one, BaseException) and one is not error and one not in above:
            yield from _causes(one, (*above, error))
    yield error


def _refusal(error: BaseException, folder: Path | None) -> str | None:
    """What the operating system refused, as a sentence with path and reason; None for other errors."""
    somewhere = f"{folder}" if folder is not None else "the output folder"
    full = re.search(r"no space left on device|disk quota exceeded", str(error), re.IGNORECASE)
    if isinstance(error, OSError) and error.strerror:
        paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
        return f"{' and '.join(paths) or somewhere}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if full:  # as libraries that write files in C++ and Rust say it
        return f"{somewhere}: {full.group().lower()}"
    return _first_line(error) if isinstance(error, OSError) and not hasattr(error, "cause") else None


def _unforeseen(error: BaseException) -> str:
    return f"internal error, {type(error).__name__}: {_first_line(error)} (run again with --debug for the traceback)"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def _end(sentence: str, code: int, json_: bool, debug: bool, ranks: "Ranks | None" = None) -> Any:
    sentence, first = _ANSI.sub("", sentence), True
    if ranks is not None:
        sentence, code, first = ranks.fail(sentence, code)
    if debug:
        traceback.print_exc()
    if first:
        print(f"electra: {sentence}", file=sys.stderr, flush=True)
    if json_ and (ranks is None or ranks.rank == 0):
        print(json.dumps({"exit_code": code, "error": sentence}), flush=True)
    if ranks is not None:
        ranks.leave()
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the `electra` command."""
    app(prog_name="electra")


if __name__ == "__main__":
    main()
