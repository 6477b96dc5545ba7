"""`electra plan CONFIG`: what an experiment's training takes, before it is begun.

Part of the command line (`pipeline.cli`).
"""

import json
import sys
from typing import Annotated

import typer

from pipeline.cli_options import Config, Debug, Json, Out, Overrides
from pipeline.endings import errors

app = typer.Typer()


@app.command(epilog="Example: electra plan configs/electra-large.yaml --gpus 64 --device h100")
def plan(
    config: Config,
    overrides: Overrides = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many.", show_default="cluster.num_workers")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="h100, h200, a100, a100-40, v100, l40s, rtx4090 or cpu.", show_default="h100, or cpu without use_gpu"
        ),
    ] = None,
    mfu: Annotated[float, typer.Option(help="Share of the device's peak that training reaches.")] = 0.4,
    price: Annotated[
        float | None, typer.Option(min=0, help="US dollars a device-hour.", show_default="assumed")
    ] = None,
    corpus_tokens: Annotated[
        float | None, typer.Option(min=1, help="Of a corpus that is not prepared: tells epochs.")
    ] = None,
    out: Out = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Parameters, FLOPs, steps, memory, traffic, hours and cost of every arm and budget; needs no GPU."""
    with errors(json_, debug):
        from pipeline import devices, place, plan_tables
        from pipeline import plan as plans
        from pipeline.console import Console

        experiment = place.read_experiment(config, overrides or [])
        name = device or ("h100" if experiment.cluster.use_gpu else "cpu")
        stated = devices.stated(name, gpus or max(1, experiment.cluster.num_workers), mfu, price)
        found = plans.make(experiment, out or place.default_folder(config, experiment), stated, corpus_tokens)
        grids = plans.grids(found)
        plan_tables.show(found, grids, Console(sys.stderr if json_ else sys.stdout))
        if json_:
            print(json.dumps({"verb": "plan", "exit_code": 0, **plan_tables.as_json(found, grids)}))
