"""The command line: `electra VERB CONFIG [KEY=VALUE]...`, one call each into `pipeline.stages`.

Guarantees: `--help` imports nothing heavy; a user's mistake is one sentence on stderr and the exit code its error
carries (2 configuration, 3 surroundings, 4 data, 5 checkpoint, 9 a failed check), an interruption is 130, anything
unforeseen is 1 with a traceback on `--debug`; with `--json` stdout carries one JSON object and nothing else.
"""

import errno
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.errors import ElectraError

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
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@app.command(epilog="Example: electra quickstart --out /tmp/first")
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
    config: Config, overrides: Overrides = None, out: Out = None, json_: Json = False, debug: Debug = False
) -> None:
    """Turn the corpus's sources into tokenized, packed WebDataset shards with a manifest."""
    _run("prepare", config, overrides, out, json_, debug)


@app.command(epilog="Example: electra train configs/quickstart.yaml cluster.num_workers=1")
def train(
    config: Config, overrides: Overrides = None, out: Out = None, json_: Json = False, debug: Debug = False
) -> None:
    """Train every arm at every budget; finished runs are kept, interrupted ones resume."""
    _run("train", config, overrides, out, json_, debug)


@app.command(epilog="Example: electra evaluate runs/quickstart --glue-dir ~/data/glue")
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


@app.command(epilog="Example: electra report runs/quickstart")
def report(
    config: Config, overrides: Overrides = None, out: Out = None, json_: Json = False, debug: Debug = False
) -> None:
    """Mirror the metrics into MLflow and write the HTML report of score against training FLOPs."""
    _run("report", config, overrides, out, json_, debug)


@app.command(epilog="Example: electra export runs/quickstart")
def export(
    config: Config, overrides: Overrides = None, out: Out = None, json_: Json = False, debug: Debug = False
) -> None:
    """Write the last ELECTRA checkpoint as two Hugging Face model folders, reloaded and compared."""
    _run("export", config, overrides, out, json_, debug)


@app.command("config", epilog="Example: electra config configs/quickstart.yaml budgets.0=1e12")
def show_config(config: Config, overrides: Overrides = None, json_: Json = False, debug: Debug = False) -> None:
    """Check an experiment file and print it with every default spelled out."""
    with _errors(json_, debug):
        from pipeline import config as yaml_config
        from pipeline.stages import read_experiment

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
) -> None:
    with _errors(json_, debug):
        from pipeline import quickstart, stages
        from pipeline.console import Console

        settings = [*(overrides or []), *stages.glue_overrides(glue_dir)]
        experiment = stages.read_experiment(config, settings)
        folder = out or stages.default_folder(config, experiment)
        console = Console(sys.stderr if json_ else sys.stdout)
        with stages.open_place(experiment, folder, console) as place:
            result = quickstart.road(place) if verb == "quickstart" else stages.run(verb, place)
        if json_:
            print(json.dumps({"verb": verb, "exit_code": 0, "out": str(folder.absolute()), **result}))


@contextmanager
def _errors(json_: bool, debug: bool) -> Iterator[None]:
    """End the process as DESIGN's exit codes say; the sentence goes to stderr, and to stdout as JSON if asked for."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        _end("interrupted; the same command again resumes", 130, json_, debug=False)
    except ElectraError as error:
        _end(str(error), error.exit_code, json_, debug)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _end(f"{error.filename or 'the output folder'}: no space left on the disk", 3, json_, debug)
        _end(_unforeseen(error), 1, json_, debug)
    except Exception as error:
        _end(_unforeseen(error), 1, json_, debug)


def _unforeseen(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"internal error, {type(error).__name__}: {first} (run again with --debug for the traceback)"


def _end(sentence: str, code: int, json_: bool, debug: bool) -> Any:
    if debug:
        traceback.print_exc()
    print(f"electra: {sentence}", file=sys.stderr, flush=True)
    if json_:
        print(json.dumps({"exit_code": code, "error": sentence}), flush=True)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the `electra` command."""
    app(prog_name="electra")


if __name__ == "__main__":
    main()
