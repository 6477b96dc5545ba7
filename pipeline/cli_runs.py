"""The verbs that look at runs, `electra VERB RUN`: what happened to them, what is saved, and asking them to stop.

Part of the command line (`pipeline.cli`): one call each, nothing heavy imported before it.
"""

import json
import sys
from typing import Annotated

import typer

from pipeline.cli_options import TRACKS, Address, Debug, Json, Run
from pipeline.endings import errors

app = typer.Typer()


@app.command(epilog="Example: electra events runs/quickstart")
def events(run: Run, json_: Json = False, debug: Debug = False) -> None:
    """Tell what happened to a run: started, saved, killed, resumed, skipped, with reasons and what it cost."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.events import events as tell

        result = tell(run, Console(sys.stderr if json_ else sys.stdout))
        if json_:
            print(json.dumps({"verb": "events", "exit_code": 0, **result}))


@app.command(epilog="Example: electra checkpoints runs/quickstart --verify")
def checkpoints(
    run: Run,
    verify: Annotated[bool, typer.Option("--verify", help="Read every checkpoint and compare its hashes.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove those that the rules of retention do not keep.")
    ] = False,
    keep_last: Annotated[
        int | None,
        typer.Option(min=1, help="With --prune: keep so many of the newest.", show_default="what the run was given"),
    ] = None,
    broken: Annotated[bool, typer.Option("--broken", help="With --prune: remove broken ones, too.")] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """List the checkpoints of a run: step, FLOPs, size, whether they are whole, and which rule keeps them."""
    with errors(json_, debug):
        from pipeline.checkpoints import checkpoints as look
        from pipeline.console import Console

        console = Console(sys.stderr if json_ else sys.stdout)
        result = look(run, console, verify=verify, prune=prune, keep_last=keep_last, broken=broken)
        if json_:
            print(json.dumps({"verb": "checkpoints", "exit_code": 0, **result}))


@app.command(
    epilog="Example: electra stop runs/quickstart --reason 'maintenance at noon'\n\n"
    "Example: electra stop /shared/runs/quickstart --now --address http://127.0.0.1:8265"
)
def stop(
    run: Run,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "electra stop",
    save: Annotated[bool, typer.Option("--save", help="Ask for a checkpoint only; training goes on.")] = False,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Have Ray end the job of this folder or submission id, whatever it does: it may save for as long as "
            "it was submitted with, and is killed then.",
        ),
    ] = False,
    address: Address = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Have what trains in a folder save and end (exit code 75); the same command again resumes."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.stop import stop as ask
        from pipeline.stop import stop_job

        console = Console(sys.stderr if json_ else sys.stdout)
        if now:
            result = stop_job(str(run), console, address=address, save_only=save)
        else:
            result = ask(run, console, reason=reason, save_only=save)
        if json_:
            print(json.dumps({"verb": "stop", "exit_code": 0, **result}))


@app.command(epilog=f"{TRACKS}\n\nExample: electra sync runs/quickstart")
def sync(run: Run, json_: Json = False, debug: Debug = False) -> None:
    """Compare MLflow with what runs recorded and send what it lacks; sending again doubles nothing."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.tracking_verb import sync as mirror

        result = mirror(run, Console(sys.stderr if json_ else sys.stdout))
        if json_:
            print(json.dumps({"verb": "sync", "exit_code": 0, **result}))
