"""`electra config`: every value and where it came from, the schema, what differs and what of it forbids going on."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from data_prep.errors import ConfigError
from pipeline import config, config_tools, place
from pipeline.config_tools import differences, origin, read
from pipeline.experiment import Experiment
from tests.conftest import ROOT
from tests.pipeline.test_cli import QUICKSTART, electra, refused

# Of every kind that ships: all objectives, weights from a folder, a protocol by name, a sweep.
NAMES = ("quickstart", "nine-objectives", "bert-base-512", "electra-large", "experiments/paper_ablation-tiny")
SHIPPED = [ROOT / "configs" / f"{name}.yaml" for name in NAMES]


def line_of(path: Path, text: str) -> int:
    """Of the only line that has it."""
    (found,) = [number for number, line in enumerate(path.read_text().splitlines(), start=1) if text in line]
    return found


def edited(path: Path, *changes: tuple[str, str]) -> Path:
    """The quickstart's file with other words in it."""
    text = QUICKSTART.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")
    return path


# --- show -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_shown_reads_back_to_the_same(path: Path, tmp_path: Path) -> None:
    found = read(path)
    for origins in (True, False):
        (tmp_path / "again.yaml").write_text(config_tools.show(found, origins=origins), encoding="utf-8")
        assert read(tmp_path / "again.yaml").experiment == found.experiment


def test_overrides_are_in_what_is_shown(tmp_path: Path) -> None:
    done = electra("config", "show", QUICKSTART, "training.global_batch=48", "--no-origins")
    assert done.exit_code == 0
    assert yaml.safe_load(done.stdout)["training"]["global_batch"] == 48
    again = tmp_path / "again.yaml"
    again.write_text(done.stdout, encoding="utf-8")
    assert electra("config", "show", again, "--no-origins").stdout == done.stdout


def test_each_value_says_where_it_came_from() -> None:
    shown = electra("config", "show", QUICKSTART, "training.log_every=7", "budgets.0=1e11", "model.num_layers=3")
    said = {}
    for line in shown.stdout.splitlines():
        value, mark, comment = line.partition("  # ")
        assert mark or value.endswith(":") or value.strip() == "-", line
        said.setdefault(value.strip(), comment)
    at = f"{QUICKSTART}:{{}}".format
    assert said["micro_batch: 8"] == at(line_of(QUICKSTART, "micro_batch: 8"))
    assert said["beta2: 0.98"] == at(line_of(QUICKSTART, "beta2: 0.98"))
    assert said["hidden_size: 128"] == at(line_of(QUICKSTART, "size: tiny"))  # stands for it
    assert said["num_layers: 3"] == "argument 'model.num_layers=3'"
    assert said["log_every: 7"] == "argument 'training.log_every=7'"
    assert said["- 100000000000.0"] == "argument 'budgets.0=1e11'"
    assert said["- 2400000000000.0"] == at(line_of(QUICKSTART, "budgets: ["))
    assert said["beta1: 0.9"] == said["seeds: 1"] == said["near_duplicates: null"] == "default"


def test_numbers_of_a_protocol_come_from_its_name() -> None:
    path = ROOT / "configs" / "electra-base.yaml"
    found, named = read(path), line_of(path, "  protocol: {name: electra_paper")
    for key in ("name", "epochs", "layer_decay"):
        assert origin(found, ("evaluation", "protocol", key)) == f"{path}:{named}"


def test_as_json_has_the_tree_and_an_origin_for_every_value() -> None:
    record = json.loads(electra("config", "show", QUICKSTART, "seed=3", "--json").stdout)
    assert record["config"] == place.read_experiment(QUICKSTART, ["seed=3"]).model_dump(mode="json")
    assert record["origins"]["seed"] == "argument 'seed=3'"
    assert record["origins"]["seeds"] == "default"
    assert record["origins"].keys() == {key for key, _, _ in config_tools.flat(record["config"])}


def test_the_folder_of_an_experiment_is_shown_by_its_own_file(tmp_path: Path) -> None:
    edited(tmp_path / "config.yaml", ("seed: 0", "seed: 5"))
    assert (
        f"seed: 5                              # {tmp_path}/config.yaml:" in electra("config", "show", tmp_path).stdout
    )


def test_a_secret_is_refused_and_not_shown() -> None:
    source = "corpus.sources=[{kind: jsonl, path: 'https://user:passphrase@example.org/x.jsonl'}]"
    sentence = refused(2, "config", "show", QUICKSTART, source)
    assert "the value of corpus.sources.0.path looks like a secret" in sentence and "passphrase" not in sentence


# --- schema -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config_tools.schema(None)


def test_the_schema_admits_files_that_ship(schema: dict[str, Any]) -> None:
    """An editor that goes by it must not underline what is right: sizes by name, one folder in place of a list."""
    jsonschema.Draft202012Validator.check_schema(schema)
    checked = jsonschema.Draft202012Validator(schema)
    for path in SHIPPED:
        assert [error.message for error in checked.iter_errors(config.document_of(path).data)] == [], path


@pytest.mark.parametrize(
    ("before", "after"),
    [("micro_batch:", "mirco_batch:"), ("size: tiny", "size: huge"), ("size: tiny", "type_vocab: 2"),
     ("objective: roberta", "objective: robreta"), ("budgets: [", "budgets: [-1, ")],
)  # fmt: skip
def test_the_schema_finds_what_is_wrong(before: str, after: str, schema: dict[str, Any], tmp_path: Path) -> None:
    data = config.document_of(edited(tmp_path / "x.yaml", (before, after))).data
    assert not jsonschema.Draft202012Validator(schema).is_valid(data)


def test_a_section_of_the_schema_has_all_it_refers_to() -> None:
    for key in (
        "training.optimizer",
        "arms",
        "arms.0.generator",
        "corpus.sources",
        "evaluation.protocol",
        "model.size",
    ):
        found = json.loads(electra("config", "schema", key).stdout)
        jsonschema.Draft202012Validator.check_schema(found)
        for name in json.dumps(found).split('"$ref": "#/$defs/')[1:]:
            assert name.partition('"')[0] in found["$defs"]
    optimizer = jsonschema.Draft202012Validator(config_tools.schema("training.optimizer"))
    assert optimizer.is_valid({"beta2": 0.98}) and not optimizer.is_valid({"beta3": 0.98})


def test_a_section_that_is_none_names_those_there_are() -> None:
    sentence = refused(2, "config", "schema", "training.optimiser")
    assert sentence.startswith("training.optimiser: no key 'optimiser' there; known: ") and "optimizer" in sentence
    with pytest.raises(ConfigError, match="known: none, it is a value"):
        config_tools.schema("seed.x")


# --- diff -------------------------------------------------------------------------------------------------------------


def test_differences_name_key_values_and_lines(tmp_path: Path) -> None:
    other = edited(tmp_path / "x.yaml", ("micro_batch: 8", "micro_batch: 4"), ("seed: 0", "seed: 1\nseeds: 2"))
    found = {one.key: one for one in differences(read(QUICKSTART), read(other))}
    assert found.keys() == {"training.micro_batch", "seed", "seeds"}
    one = found["training.micro_batch"]
    assert (one.first, one.second) == (8, 4)
    assert one.first_from == f"{QUICKSTART}:{line_of(QUICKSTART, 'micro_batch: 8')}"
    assert one.second_from == f"{other}:{line_of(other, 'micro_batch: 4')}"
    assert (found["seeds"].first, found["seeds"].first_from) == (1, "default")


@pytest.mark.parametrize(
    ("change", "forbids"),
    [
        (("micro_batch: 8", "micro_batch: 4"), []),  # placement
        (("num_workers: ", "max_failures: 7\n  num_workers: "), []),
        (("seed: 0", "seed: 0\nseeds: 3"), []),  # more of them
        (("budgets: [", "budgets: [1.0e+11, "), []),
        (("seed: 0", "seed: 1"), ["seed"]),
        (("global_batch: 16", "global_batch: 32"), ["training.global_batch"]),
        (("objective: bert, learning_rate: 1.0e-3", "objective: bert, learning_rate: 2.0e-3"),
         ["arms.bert.learning_rate"]),
        (("{beta2: 0.98}", "{beta2: 0.98, beta1: 0.8}"), ["training.optimizer.beta1"]),
    ],
)  # fmt: skip
def test_what_forbids_going_on_with_the_firsts_results(
    change: tuple[str, str], forbids: list[str], tmp_path: Path
) -> None:
    other = edited(tmp_path / "x.yaml", change)
    record = json.loads(electra("config", "diff", QUICKSTART, other, "--json").stdout)
    assert (record["changed"], record["continues"]) == (forbids, not forbids)
    assert record["differences"]
    last = electra("config", "diff", QUICKSTART, other).stdout.splitlines()[-1]
    assert last == (
        f"another experiment, by {', '.join(forbids)}: the second does not go on with results of the first"
        if forbids
        else "the same experiment: the second goes on in a folder with results of the first"
    )


def test_what_says_the_same_in_other_words_does_not_differ(tmp_path: Path) -> None:
    other = edited(tmp_path / "x.yaml", ("size: tiny", "embedding_size: 128\n  hidden_size: 128\n  num_layers: 2\n"
                                         "  num_heads: 2\n  intermediate_size: 512"))  # fmt: skip
    assert electra("config", "diff", QUICKSTART, other).stdout == "no value differs\n"


# --- validate ---------------------------------------------------------------------------------------------------------


def test_files_that_ship_are_valid() -> None:
    done = electra("config", "validate", *SHIPPED)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.partition(": ok (")[0] for line in done.stdout.splitlines()] == [str(path) for path in SHIPPED]
    assert f"{QUICKSTART}: ok (quickstart: electra, bert, roberta; 2 budgets, 1 seed)" in done.stdout.splitlines()


def test_each_mistake_is_named_with_file_line_and_key_and_the_others_are_still_looked_at(tmp_path: Path) -> None:
    wrong = edited(tmp_path / "a.yaml", ("micro_batch:", "mirco_batch:"))
    twice = edited(tmp_path / "b.yaml", ("seed: 0", "seed: 0\nseed: 1"))
    value = edited(tmp_path / "c.yaml", ("beta2: 0.98", "beta2: 1.5"))
    files = [wrong, twice, value, tmp_path / "not-there.yaml", QUICKSTART]
    done = electra("config", "validate", *files)
    assert done.exit_code == 2
    lines = done.stdout.splitlines()
    line = line_of(wrong, "mirco_batch")
    assert lines[0].startswith(
        f"warning: {wrong}:{line}: training.mirco_batch: unknown key; did you mean 'micro_batch'?"
    )
    line = line_of(twice, "seed: 1")
    assert lines[1] == f"warning: {twice}:{line}: 'seed' is set twice, first on line {line - 1}; keep one"
    line = line_of(value, "beta2: 1.5")
    assert lines[2].startswith(f"warning: {value}:{line}: training.optimizer.beta2: input should be less than")
    assert lines[3] == f"warning: {tmp_path}/not-there.yaml: no such configuration file"
    assert lines[4].startswith(f"{QUICKSTART}: ok (")
    record = json.loads(electra("config", "validate", *files, "--json").stdout)
    assert (record["exit_code"], [one["ok"] for one in record["files"]]) == (2, [False, False, False, False, True])
    assert record["files"][1]["error"] == lines[1].removeprefix("warning: ")


def test_a_folder_is_validated_by_its_file(tmp_path: Path) -> None:
    edited(tmp_path / "config.yaml")
    assert electra("config", "validate", tmp_path).exit_code == 0
    assert config.load(tmp_path / "config.yaml", model=Experiment) == read(tmp_path).experiment
