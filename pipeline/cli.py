"""The command line: `electra VERB CONFIG [KEY=VALUE]...`, one call each into `pipeline.stages`. The verbs that look at
runs are in `pipeline.cli_runs`.

Guarantees: `--help` imports nothing heavy; a mistake is one sentence on stderr and an exit code (`pipeline.endings`);
with `--json` stdout carries one JSON object and nothing else.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipeline import cli_cluster, cli_config, cli_experiment, cli_hub, cli_operate, cli_plan, cli_runs
from pipeline.cli_options import TRACKS, Config, Debug, GlueDir, Json, Out, Overrides
from pipeline.endings import errors

QUICKSTART = Path(__file__).resolve().parent.parent / "configs" / "quickstart.yaml"

app = typer.Typer(
    help="Pre-train with ELECTRA, BERT and RoBERTa at matched compute: text in, FLOPs-versus-score curves and "
    "Hugging Face checkpoints out. Every verb resumes: the same command again does only what is missing.",
    epilog="Start here: electra quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    with errors(json_, debug):
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
    with errors(json_, debug):
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


@app.command(
    epilog=f"{TRACKS}\n\nExample: electra evaluate runs/quickstart --glue-dir ~/data/glue\n\n"
    "Example: electra evaluate ~/models/bert-base --tasks CoLA,RTE --seeds 5 --glue-dir ~/data/glue"
)
def evaluate(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="An experiment file or the folder of an experiment, for all finished runs; or one model: a run "
            "(OUT/runs/NAME), a checkpoint of one, or a Hugging Face folder of a BERT, ELECTRA or RoBERTa.",
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where results go.", show_default="the experiment's folder, or runs/evaluate-NAME"),
    ] = None,
    glue_dir: GlueDir = None,
    glue_dataset: Annotated[
        str | None, typer.Option(help="GLUE as a data set in the layout of nyu-mll/glue: its name, or a local copy.")
    ] = None,
    squad_dir: Annotated[Path | None, typer.Option(help="Evaluate on the SQuAD files in this folder.")] = None,
    blimp: Annotated[
        Path | None, typer.Option(help="Score the minimal pairs of BLiMP in this file or folder, without training.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks, with commas between.", show_default="all")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Fine-tunings on each task.", show_default="as configured, else 1")
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="Of each paradigm of BLiMP.", show_default="all")] = None,
    protocol: Annotated[
        Literal["plain", "electra_paper"] | None,
        typer.Option(help="How is fine-tuned, with the protocol's own numbers.", show_default="as configured"),
    ] = None,
    size: Annotated[
        Literal["small", "base", "large"] | None, typer.Option(help="With electra_paper: whose numbers.")
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(min=0, help="Of a Hugging Face folder: the FLOPs that its training is said to have taken."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of a Hugging Face folder: what results call it.", show_default="the folder's")
    ] = None,
    submission: Annotated[
        Path | None, typer.Option(help="Of one model: answer GLUE's test sets and write the server's zip here.")
    ] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Fine-tune trained checkpoints, or any model, on GLUE, SQuAD or the built-in probes, or score them on BLiMP."""
    with errors(json_, debug):
        from pipeline import place

        numbers = {"tasks": f"[{tasks}]" if tasks else None, "seeds": seeds, "pairs": pairs}
        places = {"glue_dir": glue_dir, "glue_dataset": glue_dataset, "squad_dir": squad_dir, "blimp": blimp}
        settings = place.evaluation_overrides(places, numbers, protocol, size) + (overrides or [])
        one = {"out": out, "name": name, "flops": flops, "submission": submission}
        single = _evaluate_one(target, settings, json_, **one)
    if not single:
        _run("evaluate", target, settings, out, json_, debug)


def _evaluate_one(target: Path, settings: list[str], json_: bool, **options: Any) -> bool:
    """Evaluate the model that a path names; False where it names an experiment."""
    from data_prep.errors import ConfigError
    from pipeline.console import Console
    from pipeline.evaluate_targets import is_model

    if not is_model(target):
        if given := [name for name in ("name", "flops", "submission") if options[name] is not None]:
            raise ConfigError(f"--{given[0]} is for one model: {target} is no run, checkpoint or Hugging Face folder")
        return False
    from pipeline.evaluate_one import evaluate_one

    result = evaluate_one(target, settings, Console(sys.stderr if json_ else sys.stdout), **options)
    if json_:
        print(json.dumps({"verb": "evaluate", "exit_code": 0, **result}))
    return True


@app.command(
    epilog=f"{TRACKS}\n\nExample: electra report runs/quickstart\n\nExample: electra report runs/quickstart --check"
)
def report(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compute every number of the written report again and compare; write nothing."),
    ] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Mirror the metrics into MLflow and write the HTML report of score against training FLOPs."""
    if not check:
        _run("report", config, overrides, out, json_, debug)
        return
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.place import default_folder, read_experiment, shown
        from pipeline.recheck import check as recheck

        folder = out or default_folder(config, read_experiment(config, overrides or []))
        console = Console(sys.stderr if json_ else sys.stdout)
        with console.stage("report"):
            files = recheck(folder)
        console.say(f"report: {shown(folder / 'report')} is what its records come to ({', '.join(files)})")
        if json_:
            print(json.dumps({"verb": "report", "exit_code": 0, "out": str(folder.absolute()), "checked": files}))


@app.command(
    epilog="Example: electra export runs/quickstart\n\n"
    "Example: electra export runs/quickstart/runs/electra-4.00e+11-s0 --step 100 --dtype bf16 --out models/100"
)
def export(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="An experiment's file or folder, for its largest finished run that detects replaced tokens; a run "
            "(OUT/runs/NAME), for its newest whole checkpoint; or a checkpoint.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where the model folders go.", show_default="OUT/export; of a run, OUT/export/NAME/step-N"),
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Of a run: the checkpoint of this step.")] = None,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"],
        typer.Option(help="What the weights are rounded to; training keeps them in fp32."),
    ] = "fp32",
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Write a checkpoint's networks as Hugging Face model folders, proved in a fresh process."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.export_verb import export_target

        console = Console(sys.stderr if json_ else sys.stdout)
        result = export_target(target, console, to=out, step=step, dtype=dtype)
        if json_:
            print(json.dumps({"verb": "export", "exit_code": 0, **result}))


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
    with errors(json_, debug) as where:
        if launcher == "env":
            from cluster.launch import join

            where.ranks = join()
            if where.ranks.rank > 0:
                where.ranks.follow()
                return
        from pipeline import place as places
        from pipeline import quickstart, stages
        from pipeline.console import Console

        settings = [*(overrides or []), *places.suite_overrides({"glue_dir": glue_dir})]
        experiment = places.read_experiment(config, settings)
        if verb in ("quickstart", "evaluate"):
            places.check_tasks(experiment)
        where.folder = folder = out or places.default_folder(config, experiment)
        console = Console(sys.stderr if json_ else sys.stdout)
        with places.open_place(experiment, folder, console, where.ranks) as place:
            result = quickstart.road(place) if verb == "quickstart" else stages.run(verb, place, **options)
        if json_:
            print(json.dumps({"verb": verb, "exit_code": 0, "out": str(folder.absolute()), **result}))


app.add_typer(cli_config.app)
app.add_typer(cli_operate.app)
app.add_typer(cli_runs.app)
app.add_typer(cli_experiment.app)
app.add_typer(cli_plan.app)
app.add_typer(cli_hub.app)
app.add_typer(cli_cluster.app)


def main() -> None:
    """Entry point of the `electra` command."""
    app(prog_name="electra")


if __name__ == "__main__":
    main()
