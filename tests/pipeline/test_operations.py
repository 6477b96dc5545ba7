"""docs/operations.md: its sizing table is what the plan says today, and its commands are commands."""

import re
import shlex

import pytest

from data_prep.errors import ElectraError
from pipeline import config
from pipeline.experiment import Experiment
from tests.conftest import ROOT
from tests.pipeline import sizing
from tests.pipeline.test_cli import electra

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {
        re.sub(r"\s+#.*|;.*", "", line).strip()
        for line in PAGE.replace("\\\n", " ").splitlines()
        if line.startswith("    electra ")
    }
)


def test_the_sizing_table_is_of_today() -> None:
    assert sizing.table() in PAGE, f"stale: python -m tests.pipeline.sizing prints\n{sizing.table()}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command: str) -> None:
    """Its verb and options exist, and its overrides are settings of ELECTRA-Large."""
    words = shlex.split(command)[1:]
    verb = words[: 2 if words[0] in ("config", "experiment") else 1]
    help_ = electra(*verb, "--help")
    assert help_.exit_code == 0, command
    for option in (word for word in words if word.startswith("--")):
        assert option in help_.stdout.replace("│", " "), command
    overrides = [word for word in words if re.match(r"^[a-z_.]+=", word)]
    try:
        config.load(ROOT / "configs" / "electra-large.yaml", overrides, Experiment)
    except ElectraError as refused:
        pytest.fail(f"{command}: {refused}")


def test_every_exit_code_is_told() -> None:
    from data_prep import errors

    codes = {one.exit_code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)}
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert codes <= told and {0, 130} <= told
