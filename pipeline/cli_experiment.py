"""The verbs of a whole experiment, `electra experiment run|check FILE`: one call each, nothing heavy imported first.

Part of the command line (`pipeline.cli`).
"""

import json
import sys
from typing import Annotated

import typer

from pipeline.cli_options import TRACKS, Config, Debug, Json, Out, Overrides
from pipeline.endings import errors

app = typer.Typer()
experiment = typer.Typer(
    help="A matched comparison from one file: do what it still lacks, and check that it is one.",
    epilog="Example: electra experiment run configs/experiments/bert_roberta_electra-tiny.yaml --dry-run",
    no_args_is_help=True,
)
app.add_typer(experiment, name="experiment")


@experiment.command(
    epilog=f"{TRACKS}\n\nExample: electra experiment run configs/experiments/bert_roberta_electra-tiny.yaml --dry-run"
)
def run(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="List every run with steps, FLOPs, time and cost; start and write nothing."),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="With --dry-run: what it is to run on, as h100; of CPUs the pace is measured here."),
    ] = None,
    mfu: Annotated[float, typer.Option(min=0.01, max=1.0, help="With --device: the share of its peak reached.")] = 0.4,
    price: Annotated[float | None, typer.Option(min=0.0, help="With --device: of one of them for an hour.")] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Prepare, sweep learning rates, train, evaluate and report: whatever of it is not yet done."""
    with errors(json_, debug) as where:
        from pipeline import experiment_run
        from pipeline import place as places
        from pipeline.console import Console

        experiment = places.read_experiment(config, overrides or [])
        places.check_tasks(experiment)
        where.folder = folder = out or places.default_folder(config, experiment)
        console = Console(sys.stderr if json_ else sys.stdout)
        if dry_run:
            from pipeline.experiment_dry_run import dry_run as expect

            stated = None
            if device is not None:
                from pipeline.devices import stated as state

                stated = state(device, max(1, experiment.cluster.num_workers), mfu, price)
            result = expect(experiment, folder, console, stated=stated)
        else:
            with places.open_place(experiment, folder, console) as place:
                result = experiment_run.run(place)
        if json_:
            print(json.dumps({"verb": "experiment run", "exit_code": 0, "out": str(folder.absolute()), **result}))


@experiment.command(epilog="Example: electra experiment check runs/bert_roberta_electra-tiny")
def check(
    config: Config, overrides: Overrides = None, out: Out = None, json_: Json = False, debug: Debug = False
) -> None:
    """Check that the comparison is matched, as planned and as recorded; exit code 9 with the reasons."""
    with errors(json_, debug) as where:
        from pipeline import experiment_check
        from pipeline import place as places
        from pipeline.console import Console

        experiment = places.read_experiment(config, overrides or [])
        where.folder = folder = out or places.default_folder(config, experiment)
        result = experiment_check.check(experiment, folder, Console(sys.stderr if json_ else sys.stdout))
        if json_:
            print(json.dumps({"verb": "experiment check", "exit_code": 0, "out": str(folder.absolute()), **result}))
