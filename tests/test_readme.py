"""Every command and every piece of Python in the README and in docs/ is run, here, on a tiny experiment, and every
piece of YAML is read as the settings it stands for.

Commands stand in ```bash blocks, one a line; they run in a directory laid out as a reader's: configs/quickstart.yaml
(tiny) and runs/quickstart (made by it). What is not run is listed in SKIPPED, and nothing else may go unrun.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from cluster.config import ClusterConfig
from data_prep.corpus import CorpusConfig
from pipeline.corpora import Variant
from pipeline.sweep_config import SweepConfig
from tests.conftest import ROOT, Road
from tests.pipeline.tiny_evaluation import write_blimp
from training.arms import ArmConfig
from training.protocol import EvaluationConfig
from training.settings import TrainingConfig

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(bash|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)

SECTIONS: dict[str, TypeAdapter[Any]] = {
    "corpus": TypeAdapter(CorpusConfig),
    "corpora": TypeAdapter(dict[str, Variant]),
    "training": TypeAdapter(TrainingConfig),
    "arms": TypeAdapter(list[ArmConfig]),
    "evaluation": TypeAdapter(EvaluationConfig),
    "sweep": TypeAdapter(SweepConfig),
    "cluster": TypeAdapter(ClusterConfig),
}

PUBLISHED = "models/bert"  # somebody else's

# A command that begins so is not run: it needs a network, a screen, or serves until it is stopped.
SKIPPED = ("git clone ", "cd ", "open ", "mlflow ui ", ".venv/bin/mlflow ui ")


def blocks(language: str) -> list[str]:
    found = [block for page in PAGES for block in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [text for of_block, text in found if of_block == language]


def commands() -> list[str]:
    """The command lines, each once, comments and continuations resolved, `&&` taken apart."""
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    whole = [re.sub(r"\s+#.*$", "", line).strip() for line in lines if not line.lstrip().startswith("#")]
    return list(dict.fromkeys(part.strip() for line in whole if line for part in line.split("&&")))


def ours(command: str) -> list[str] | None:
    """The arguments of an `electra` command, or None."""
    words = shlex.split(command)
    return words[1:] if Path(words[0]).name == "electra" else None


def test_the_readme_has_commands() -> None:
    assert "make quickstart" in commands()
    assert any(ours(command) for command in commands())


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    unknown = [
        command
        for command in commands()
        if ours(command) is None and not command.startswith(("make", ".ci/run", *SKIPPED))
    ]
    assert not unknown


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("make")])
def test_make_targets_exist(command: str) -> None:
    dry = subprocess.run([*shlex.split(command), "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


def test_ci_script_runs_as_it_stands() -> None:
    done = subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=False)
    assert done.returncode == 0
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


@pytest.mark.slow
@pytest.mark.multi
@pytest.mark.parametrize("command", [command for command in commands() if ours(command)])
def test_electra_commands_end_well(command: str, road: Road, glue: Path) -> None:
    """As they stand, but for: quickstart takes the tiny configuration, a published model is the tiny one's export, with
    as few positions, and GLUE and BLiMP are what is at hand."""
    arguments = ours(command)
    assert arguments is not None
    if arguments[0] == "plan":  # of a file as it ships, which the tiny directory does not hold
        arguments = [str(ROOT / one) if one.startswith("configs/") else one for one in arguments]
    if arguments[0] == "quickstart" and "--config" not in arguments:
        arguments += ["--config", "configs/quickstart.yaml"]
    if "--glue-dir" in arguments:
        arguments[arguments.index("--glue-dir") + 1] = str(glue)
        arguments.append("evaluation.tasks=[RTE]")
    if "--blimp" in arguments:
        arguments[arguments.index("--blimp") + 1] = str(write_blimp(glue / "blimp.jsonl"))
    if PUBLISHED in arguments:
        arguments[arguments.index(PUBLISHED)] = "runs/quickstart/export/discriminator"
        arguments.append("evaluation.protocol.max_length=32")
    road.electra(*arguments)


@pytest.mark.slow
@pytest.mark.multi
@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code: str, road: Road) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=road.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_is_what_the_settings_say(text: str) -> None:
    ((name, value),) = yaml.safe_load(text).items()
    SECTIONS[name].validate_python(value)


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RTE in GLUE's own format, a few invented lines of it: the commands are tested here, not the scores."""
    folder = tmp_path_factory.mktemp("glue")
    (folder / "RTE").mkdir()
    for split, n in (("train", 40), ("dev", 24)):
        lines = [
            f"{i}\tThe ship is {i} days old.\tThe ship is old.\t{('entailment', 'not_entailment')[i % 2]}"
            for i in range(n)
        ]
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n"
        (folder / "RTE" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return folder
