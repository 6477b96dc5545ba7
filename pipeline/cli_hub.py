"""The verbs of exported folders, `electra VERB DIR`: sending them to a hub, and seeing one at work.

Part of the command line (`pipeline.cli`): one call each, nothing heavy imported before it.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli_options import Debug, Json
from pipeline.endings import errors

app = typer.Typer()


@app.command(
    epilog="Example: electra push runs/quickstart/export me/electra-quickstart --dry-run\n\n"
    "Example: electra push runs/quickstart/runs/electra-2.40e+12-s0 me/electra-quickstart --all-checkpoints"
)
def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `electra export` wrote, or one model of it.")],
    repository: Annotated[
        str, typer.Argument(metavar="REPO", help="OWNER/NAME; of several networks, each goes to NAME-KIND.")
    ],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public; it is private else.")] = False,
    license_: Annotated[
        str | None, typer.Option("--license", help="Of the weights, as apache-2.0, for the card.", show_default="none")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, made where it is not there.")] = None,
    all_checkpoints: Annotated[
        bool,
        typer.Option(
            "--all-checkpoints",
            help="DIR is a run, or holds exported folders, one a checkpoint: each to a branch step-N-flops-X, the "
            "newest to main.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List files and sizes; send nothing.")] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Send exported folders to the Hugging Face Hub, or another at HF_ENDPOINT; again sends only what is missing."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.hub_push import push_folder

        result = push_folder(
            folder,
            repository,
            Console(sys.stderr if json_ else sys.stdout),
            public=public,
            licence=license_,
            revision=revision,
            every=all_checkpoints,
            dry_run=dry_run,
        )
        if json_:
            print(json.dumps({"verb": "push", "exit_code": 0, **result}))


@app.command(
    epilog="Example: electra demo runs/quickstart/export 'The chef ate the meal'\n\n"
    "Example: electra demo models/electra 'The chef ate the train' --html chef.html"
)
def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `electra export` wrote, or the folder of a discriminator.")
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A sentence or two.")],
    generator: Annotated[
        Path | None, typer.Option(help="Folder of a generator.", show_default="the one beside the discriminator")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page of it here.")] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Show for every token of a text how likely it was replaced, and what the generator would have put there."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.demo import demo as judge

        result = judge(folder, text, Console(sys.stderr if json_ else sys.stdout), generator=generator, html=html)
        if json_:
            print(json.dumps({"verb": "demo", "exit_code": 0, **result}))
