"""The verbs of experiment files: `electra config show|schema|diff|validate`, and `electra init`.

Part of the command line (`pipeline.cli`): one call each, nothing heavy imported before it.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli_options import Config, Debug, Json, Overrides
from pipeline.endings import errors

app = typer.Typer()
config = typer.Typer(
    help="Look at experiment files: every value and where it came from, the schema, what differs, what is wrong.",
    epilog="Example: electra config show configs/quickstart.yaml",
    no_args_is_help=True,
)
app.add_typer(config, name="config")


@config.command(epilog="Example: electra config show configs/quickstart.yaml budgets.0=1e11")
def show(
    config: Config,
    overrides: Overrides = None,
    origins: Annotated[
        bool, typer.Option("--origins/--no-origins", help="Say beside each value where it came from.")
    ] = True,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Check an experiment file and print it with every default spelled out, as YAML that reads back to the same."""
    with errors(json_, debug):
        from pipeline import config_tools

        found = config_tools.read(config, overrides or [])
        if json_:
            print(json.dumps({"verb": "config show", "exit_code": 0, **config_tools.as_json(found)}))
        else:
            print(config_tools.show(found, origins=origins))


@config.command(epilog="Example: electra config schema training.optimizer")
def schema(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="A section, as training.optimizer.", show_default="all")
    ] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Print the JSON schema of experiment files, for editors and other programs."""
    with errors(json_, debug):
        from pipeline import config_tools

        print(json.dumps(config_tools.schema(key), indent=None if json_ else 2))


@config.command(epilog="Example: electra config diff configs/electra-base.yaml configs/electra-large.yaml")
def diff(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="An experiment file, or an experiment's folder.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Another one.")],
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Say in which values two experiments differ, defaults included, and whether they are the same experiment."""
    with errors(json_, debug):
        from pipeline import config_tools
        from pipeline.console import Console

        console = Console(sys.stderr if json_ else sys.stdout)
        result = config_tools.diff(config_tools.read(first), config_tools.read(second), console)
        if json_:
            print(json.dumps({"verb": "config diff", "exit_code": 0, **result}))


@config.command(epilog="Example: electra config validate configs/quickstart.yaml configs/electra-large.yaml")
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="CONFIG...", help="Experiment files.")],
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Check experiment files; exit code 2 where one has a mistake, which is named with its line and key."""
    with errors(json_, debug):
        from pipeline import config_tools
        from pipeline.console import Console

        records = config_tools.validate(files, Console(sys.stderr if json_ else sys.stdout))
        code = 0 if all(record["ok"] for record in records) else 2
        if json_:
            print(json.dumps({"verb": "config validate", "exit_code": code, "files": records}))
        if code:
            raise typer.Exit(code)


@app.command(epilog="Example: electra init experiment.yaml --text data/text.jsonl")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file to write.")],
    text: Annotated[
        Path | None, typer.Option(help="Your text, as JSONL, plain text or Parquet.", show_default="installed docs")
    ] = None,
    size: Annotated[str, typer.Option(help="Of the encoder: tiny, small, base or large.")] = "small",
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Write a commented experiment file to begin with: electra, bert and roberta at two budgets."""
    with errors(json_, debug):
        from pipeline.console import Console
        from pipeline.starter import write

        result = write(file, Console(sys.stderr if json_ else sys.stdout), text=text, size=size, force=force)
        if json_:
            print(json.dumps({"verb": "init", "exit_code": 0, **result}))
