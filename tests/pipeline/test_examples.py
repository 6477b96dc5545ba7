"""Every verb's help has examples, and every one of them is run: here, on the tiny experiment, or where it is said.

They run as they stand but for what REPLACED names: what a reader has and this directory has not, and what would take
minutes; nothing is pushed. Those that name a cluster's address are run by `test_submit_ray`, which has one.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from pipeline import cli
from tests.conftest import ROOT, Road
from tests.pipeline.test_cli import electra
from tests.test_readme import glue  # noqa: F401 (a fixture)

MODEL = "runs/quickstart/export/discriminator"
REPLACED = {
    "/tmp/first": "runs/quickstart",
    "corpus.seq_len=256": "corpus.seq_len=32",
    "runs/long": "runs/quickstart",
    "budgets.0=1e11": "budgets.0=1e8",
    "~/models/bert-base": MODEL,
    "models/electra": MODEL,
    "CoLA,RTE": "RTE",
    "runs/quickstart/runs/electra-4.00e+11-s0": "runs/quickstart/runs/electra-3.00e+08-s0",
    "runs/quickstart/runs/electra-2.40e+12-s0": "runs/quickstart/runs/electra-3.00e+08-s0",
    "configs/experiments/bert_roberta_electra-tiny.yaml": "configs/quickstart.yaml",
    "runs/bert_roberta_electra-tiny": "runs/quickstart",
    "data/text.jsonl": "documents.jsonl",
}
# Of options, whatever their values.
VALUES = {"--seeds": "1", "--step": "5"}
ADDED = {
    "quickstart": ["--config", "configs/quickstart.yaml"],
    "evaluate": ["evaluation.tasks=[RTE]"],
    "push": ["--dry-run"],
}
NO_PROBLEM = {"doctor": (0, 3)}  # of this machine it may find something


def verbs() -> Iterator[tuple[str, str]]:
    """Every verb and its help's last lines."""
    waiting: list[tuple[str, click.Command]] = [("", typer.main.get_command(cli.app))]
    while waiting:
        name, command = waiting.pop(0)
        below = getattr(command, "commands", {})
        waiting += [(f"{name} {one}".strip(), inner) for one, inner in below.items()]
        if not below:
            yield name, command.epilog or ""


def examples() -> list[str]:
    """Their command lines."""
    return [found for _, epilog in verbs() for found in re.findall(r"^Example: electra (.*)$", epilog, re.MULTILINE)]


def needs_a_cluster(example: str) -> bool:
    return "--address" in example


def arguments_of(example: str, glue_dir: Path) -> list[str]:
    """As they are typed here."""
    words = shlex.split(example)
    for at, word in enumerate(words):
        words[at] = VALUES.get(words[at - 1], REPLACED.get(word, str(glue_dir) if word == "~/data/glue" else word))
    if MODEL in words and words[0] == "evaluate":
        return [*words, "evaluation.protocol.max_length=32"]
    return words + ADDED.get(words[0], [])


def test_every_verb_has_an_example_of_itself() -> None:
    for name, epilog in verbs():
        assert re.search(rf"^Example: electra {name}( |$)", epilog, re.MULTILINE), name


HERE = [one for one in examples() if not needs_a_cluster(one)]


@pytest.mark.slow
@pytest.mark.multi
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("example", HERE)
def test_examples_end_well(
    example: str,
    road: Road,
    glue: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(road.folder)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    arguments = arguments_of(example, glue)
    done = electra(*arguments)
    assert done.exit_code in NO_PROBLEM.get(arguments[0], (0,)), f"{arguments}\n{done.output}"
    assert done.stdout.strip()


def test_shells_are_told_how_to_complete_verbs() -> None:
    def asked(**variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from pipeline.cli import main; main()"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    assert "complete -o default -F _electra_completion electra" in asked(_ELECTRA_COMPLETE="source_bash")
    for words, offered in (("electra sta", ["status"]), ("electra config s", ["show", "schema"])):
        found = asked(_ELECTRA_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
        assert found.split() == offered
    assert "--install-completion" in electra("--help").stdout
