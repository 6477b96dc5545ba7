"""Arguments and options that several verbs of the command line share."""

from pathlib import Path
from typing import Annotated

import typer

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
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or an experiment's for all of its runs.")]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster's dashboard.", show_default="RAY_API_SERVER_ADDRESS")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
