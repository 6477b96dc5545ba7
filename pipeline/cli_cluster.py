"""The verbs of clusters: `electra submit CONFIG` and `electra logs JOB`.

Part of the command line (`pipeline.cli`): one call each, nothing heavy imported before it.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.cli_options import Address, Config, Debug, Json, Overrides
from pipeline.endings import errors

app = typer.Typer()


@app.command(
    epilog="Example: electra submit configs/quickstart.yaml --verb 'experiment run' --dry-run\n\n"
    "Example: electra submit configs/quickstart.yaml --address http://127.0.0.1:8265 --wait"
)
def submit(
    config: Config,
    overrides: Overrides = None,
    verb: Annotated[
        Literal["prepare", "train", "evaluate", "report", "export", "experiment run"],
        typer.Option(help="What is to be done there."),
    ] = "train",
    out: Annotated[
        Path | None,
        typer.Option(help="The experiment's folder, as every machine sees it.", show_default="SHARED/runs/NAME"),
    ] = None,
    backend: Annotated[
        Literal["ray", "kuberay", "slurm", "local"] | None,
        typer.Option(help="Where it is done; local is this very machine.", show_default="cluster.submit.backend"),
    ] = None,
    address: Address = None,
    working_dir: Annotated[
        Path, typer.Option(help="With Ray Jobs: the folder that is sent, with the configuration in it.")
    ] = Path("."),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent, without secrets; reach nobody.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show what it writes until it ends, and end with its exit code.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Submit work that has succeeded once more.")] = False,
    cluster_only: Annotated[
        bool,
        typer.Option("--cluster-only", help="With KubeRay: a RayCluster that does no work and stays, to submit to."),
    ] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Send an experiment's work to a cluster; the same again finds the job, or tries again what ended unfinished."""
    with errors(json_, debug):
        from pipeline import submit as submission
        from pipeline.console import Console
        from pipeline.submit_work import work_of

        work, chosen = work_of(config, overrides or [], verb, out, backend, json_)
        console = Console(sys.stderr if json_ else sys.stdout)
        send = partial(submission.submit, work, chosen, console, folder=working_dir, address=address)
        result = {"exit_code": 0, **send(dry_run=dry_run, wait=wait, again=again, cluster_only=cluster_only)}
        if json_:
            print(json.dumps({"verb": "submit", **result}))
        if result["exit_code"]:
            raise typer.Exit(result["exit_code"])


@app.command(epilog="Example: electra logs /shared/runs/quickstart -f --address http://127.0.0.1:8265")
def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A submission id, or the folder that a job works in.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    address: Address = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a job's command has written; what its runs came to is told by `electra events`."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.submit import logs as show

        result = show(job, Console(sys.stderr if json_ else sys.stdout), address=address, follow=follow)
        if json_:
            print(json.dumps({"verb": "logs", "exit_code": 0, **result}))
