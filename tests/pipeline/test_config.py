"""The YAML loader: values as meant, and one sentence with the place and the nearest key for every mistake."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import Field, PositiveInt, model_validator

from data_prep.errors import ConfigError
from data_prep.settings import Settings
from pipeline.config import dump, load


class Optim(Settings):
    learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: float = 0.01
    steps: PositiveInt | None = None


class Files(Settings):
    kind: Literal["files"] = "files"
    path: str


class Docs(Settings):
    kind: Literal["docs"] = "docs"
    max_bytes: PositiveInt = 10


Source = Annotated[Files | Docs, Field(discriminator="kind")]


class Tree(Settings):
    name: str
    optim: Optim
    sources: list[Source] = Field(default=[Docs()])
    flags: dict[str, bool] = Field(default={})
    low: int = 0
    high: int = 10

    @model_validator(mode="after")
    def _ordered(self) -> "Tree":
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


GOOD = """\
name: first
optim:
  learning_rate: 1e-3
  weight_decay: 0.1
sources:
  - {kind: files, path: a.txt}
  - kind: docs
    max_bytes: 14_000_000
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def _write(text: str) -> Path:
        Path("x.yaml").write_text(text, encoding="utf-8")
        return Path("x.yaml")

    return _write


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, Tree)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_values_as_meant(write):
    tree = load(write(GOOD), model=Tree)
    assert tree.optim == Optim(learning_rate=0.001, weight_decay=0.1)
    assert tree.sources == [Files(path="a.txt"), Docs(max_bytes=14_000_000)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("4.0e+11", 4e11),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("010", 10),
        ("0x1f", 31),
        ("14_000", 14000),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("'1e-3'", "1e-3"),
        ("e5", "e5"),
        ("[1, 2e0]", [1, 2.0]),
    ],
)
def test_scalars_follow_yaml_1_2(text, value, write):
    class One(Settings):
        x: object

    got = load(write(f"x: {text}\n"), model=One).x
    assert got == value
    assert type(got) is type(value)


def test_merge_keys_and_aliases_used_twice(write):
    text = """\
name: m
flags: {a: true}
optim: &o {<<: &base {learning_rate: 1.0, weight_decay: 0.5}, weight_decay: 0.25}
"""
    assert load(write(text), model=Tree).optim == Optim(learning_rate=1.0, weight_decay=0.25)

    class Twice(Settings):
        a: Optim
        b: Optim

    twice = load(write("a: &a {<<: {learning_rate: 2.0, weight_decay: 1}, weight_decay: 0}\nb: *a\n"), model=Twice)
    assert twice.a == twice.b == Optim(learning_rate=2.0, weight_decay=0)


def test_dump_is_read_back_equal(write):
    tree = load(write(GOOD), ["optim.learning_rate=3e-7", "flags={x: true, 'no': false}", "name='1e5'"], Tree)
    assert load(write(dump(tree)), model=Tree) == tree


# --- overrides ---


def test_overrides_apply_in_order_and_reach_into_lists_and_new_sections(write):
    overrides = ["optim.learning_rate=0.5", "optim.learning_rate=2e-3", "sources.1.max_bytes=7", "flags.a=true"]
    tree = load(write(GOOD), overrides, Tree)
    assert tree.optim.learning_rate == 0.002
    assert tree.sources[1] == Docs(max_bytes=7)
    assert tree.flags == {"a": True}


def test_override_may_hold_equals_signs_and_structures(write):
    tree = load(write(GOOD), ["name=a=b", "sources=[{kind: files, path: 'x=y'}]"], Tree)
    assert (tree.name, tree.sources) == ("a=b", [Files(path="x=y")])


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optim.learning_rate", "an override reads section.key=value"),
        ("optim..x=1", "an override reads section.key=value"),
        ("optim.lerning_rate=1", "optim.lerning_rate: unknown key; did you mean 'learning_rate'?"),
        ("optim.learning_rate=-1", "optim.learning_rate: input should be greater than 0, not -1"),
        ("optm.learning_rate=1", "optm: unknown key; did you mean 'optim'?"),
        ("sources.2.path=x", "'sources' is a list; '2' is not one of its positions (0 to 1)"),
        ("sources.first.path=x", "'sources' is a list; 'first' is not one of its positions (0 to 1)"),
        ("name.x=1", "'name' is a single value and has no 'x' in it"),
        ("name=[1", "expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_override_mistakes_name_the_argument(override, sentence, write):
    message = refusal(write(GOOD), override)
    assert message.startswith(f"argument '{override}'")
    assert sentence in message


# --- mistakes in the file ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: x\noptim:\n  learning_rate: 1\n  weigth_decay: 1\n",
            "x.yaml:4: optim.weigth_decay: unknown key; did you mean 'weight_decay'?",
        ),
        (
            "name: x\noptim: {learning_rate: 1}\nweight_decay: 0\n",
            "x.yaml:3: weight_decay: unknown key; did you mean 'optim.weight_decay'?",
        ),
        (
            "name: x\noptim: {learning_rate: 1}\nsources:\n- kind: docs\n  pth: a\n",
            "x.yaml:5: sources.0.pth: unknown key; known here: kind, max_bytes",
        ),
        (
            "name: x\noptim:\n  learning_rate: 0\n",
            "x.yaml:3: optim.learning_rate: input should be greater than 0, not 0",
        ),
        ("name: x\noptim:\n  weight_decay: 0\n", "x.yaml:2: optim.learning_rate: required, but not set"),
        ("optim: {learning_rate: 1}\n", "x.yaml:1: name: required, but not set"),
        (
            "name: x\noptim: {learning_rate: 1}\nsources:\n- {kind: files}\n",
            "x.yaml:4: sources.0.path: required, but not set",
        ),
        ("name: x\nname: y\n", "x.yaml:2: 'name' is set twice, first on line 1; keep one"),
        ("name: x\noptim: {learning_rate: 1}\nlow: 3\nhigh: 2\n", "x.yaml:1: low is above high"),
        ("a:\n\tb: 1\n", "x.yaml:2: a tab; YAML indents with spaces only"),
        ("- a\n- b\n", "x.yaml: holds no 'key: value' mapping at its top level; see configs/quickstart.yaml"),
        ("", "x.yaml: holds no 'key: value' mapping at its top level; see configs/quickstart.yaml"),
        ("name: &n [*n]\n", "x.yaml:1: the alias contains itself"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: but found another document"),
    ],
)
def test_each_mistake_is_one_sentence_with_its_line(text, message, write):
    assert refusal(write(text)) == message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("- kind: doc", "x.yaml:4: sources.0.kind: input should be 'files' or 'docs', not 'doc'; did you mean 'docs'?"),
        ("-\n  kind: x", "x.yaml:5: sources.0.kind: input should be 'files' or 'docs', not 'x'"),
        ("- path: x", "x.yaml:4: sources.0.kind: required, but not set"),
        ("- docs", "x.yaml:4: sources.0: input should be a mapping, not 'docs'"),
    ],
)
def test_what_is_wrong_with_the_tag_of_a_union(source, message, write):
    assert refusal(write(f"name: x\noptim: {{learning_rate: 1}}\nsources:\n{source}\n")) == message


def test_several_mistakes_are_counted_and_the_unknown_key_comes_first(write):
    message = refusal(write("optim: {learning_rate: -1}\nnam: x\n"))
    assert message == "x.yaml:2: nam: unknown key; did you mean 'name'? (and 2 more problems)"


def test_python_tags_are_refused_and_run_nothing(write, tmp_path):
    for text in (
        f"name: !!python/object/apply:os.mkdir ['{tmp_path}/owned']\n",
        f"name: !!python/object/apply:os.mkdir\n  - {tmp_path}/owned\n",
    ):
        assert "x.yaml:1" in refusal(write(text))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("text", ["1_", "9" * 5000])
def test_integers_that_python_does_not_read_are_refused(text, write):
    assert refusal(write(GOOD), f"low={text}").endswith("is no integer that can be read")
    shown = f"{text[:20]}{'…' * (len(text) > 20)}"
    assert refusal(write(GOOD + f"low: {text}\n")) == f"x.yaml:9: '{shown}' is no integer that can be read"


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", "1e999", "9" * 400])
def test_numbers_that_are_not_finite_are_refused_wherever_they_stand(text, write):
    for key in ("optim.learning_rate", "optim.weight_decay"):
        assert f"{key}: input should be a finite number" in refusal(write(GOOD), f"{key}={text}")
    message = refusal(write(GOOD.replace("weight_decay: 0.1", f"weight_decay: {text}")))
    assert message.startswith("x.yaml:4: optim.weight_decay: input should be a finite number")


def test_nesting_without_end_is_refused(write):
    for opening, closing in (("[", "]"), ("{a: ", "}")):
        deep = opening * 3000 + "1" + closing * 3000
        assert refusal(write(f"name: {deep}\n")) == "x.yaml: is nested too deeply to be a configuration"
        assert "is nested too deeply" in refusal(write(GOOD), f"name={deep}")
    refusal(write(GOOD), "optim." + "a." * 3000 + "b=1")


def test_missing_file_directory_and_binary(tmp_path, write):
    near = write(GOOD)
    assert refusal(Path("y.yaml")) == f"y.yaml: no such configuration file; did you mean '{near}'?"
    assert "is a directory" in refusal(tmp_path)
    Path("b.yaml").write_bytes(b"name: \xff\xfe")
    assert refusal(Path("b.yaml")).startswith("b.yaml: cannot be read as UTF-8 text")
    Path("c.yaml").write_bytes(b"name: a\x00b")
    assert refusal(Path("c.yaml")).startswith("c.yaml: ")


def test_pyyaml_alone_would_misread(write):
    """Why this loader exists: the two traps it closes are still in PyYAML."""
    assert yaml.safe_load("x: 1e-3") == {"x": "1e-3"}
    assert yaml.safe_load("x: 1\nx: 2") == {"x": 2}
