"""The verbs of whoever looks after experiments: `electra status [RUN]` and `electra doctor [CONFIG]`.

Part of the command line (`pipeline.cli`): one call each, nothing heavy imported before it.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli_options import Address, Debug, Json, Out, Overrides
from pipeline.endings import errors

app = typer.Typer()


@app.command(
    epilog="Example: electra status\n\n"
    "Example: electra status /shared/runs/quickstart --watch --address http://127.0.0.1:8265"
)
def status(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's folder, an experiment's, or the id of a job on the cluster.",
            show_default="all experiments in runs/",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 2 s until nothing is trained.")] = False,
    address: Address = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Tell where runs stand: step, FLOPs, pace, loss, time left, newest checkpoint, restarts and why, goodput."""
    with errors(json_, debug):
        from data_prep.errors import ConfigError
        from pipeline.console import Console
        from pipeline.status import status as tell

        if watch and json_:
            raise ConfigError("--watch draws for a person; ask again and again with --json instead")
        result = tell(run, Console(sys.stderr if json_ else sys.stdout), address=address, watch=watch)
        if json_:
            print(json.dumps({"verb": "status", "exit_code": 0, **result}))


@app.command(
    epilog="Example: electra doctor\n\n"
    "Example: electra doctor configs/quickstart.yaml --address http://127.0.0.1:8265 --bundle report.tar.gz"
)
def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]", help="An experiment file or folder, to check for what it needs.", show_default="none"
        ),
    ] = None,
    overrides: Overrides = None,
    out: Out = None,
    address: Address = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Pack the findings, records and logs, without secrets, into this .tar.gz.")
    ] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Look for what stands in the way of a run: packages, GPUs, storage, Ray and its token, MLflow, the Hub."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.doctor import doctor as examine
        from pipeline.place import default_folder, read_experiment
        from pipeline.submit_work import shared_folder

        experiment = read_experiment(config, overrides or []) if config is not None else None
        folder = out or Path()
        if out is None and config is not None and experiment is not None:  # of a cluster's, where `submit` puts it
            sent = address is not None and not config.is_dir()
            folder = Path(shared_folder(experiment)) if sent else default_folder(config, experiment)
        console = Console(sys.stderr if json_ else sys.stdout)
        result = examine(experiment, folder, console, address=address, bundle=bundle)
        if json_:
            print(json.dumps({"verb": "doctor", **result}))
        if result["exit_code"]:
            raise typer.Exit(result["exit_code"])
