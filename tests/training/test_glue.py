"""GLUE readers: the layout of every task, awkward rows, broken files by file and line, and the real files."""

import os
from pathlib import Path

import pytest

from data_prep.errors import DataError
from training.glue import GLUE, load_glue, load_tests
from training.tasks import Example

COLA = 'gj04\t1\t\tThe sailors rode the breeze.\ngj04\t0\t*\tThem "ran.\n'
RTE = "index\tsentence1\tsentence2\tlabel\n0\tA man.\tA person.\tentailment\n1\tA cat.\tA dog.\tnot_entailment\n"
MNLI_COLUMNS = "index\tpromptID\tpairID\tgenre\ts1_binary_parse\ts2_parse\tsentence1\tsentence2"
STS_COLUMNS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
QQP_COLUMNS = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"

# of every task: the header and two rows in the distribution's columns, and the examples they are
LAYOUTS: dict[str, tuple[str, list[Example]]] = {
    "CoLA": (COLA, [Example("The sailors rode the breeze.", None, 1), Example('Them "ran.', None, 0)]),
    "SST-2": (
        "sentence\tlabel\nfine , moving \t1\nbad \t0\n",
        [Example("fine , moving ", None, 1), Example("bad ", None, 0)],
    ),
    "MRPC": (
        'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t\t\t"He left.\tHe said "no".\n0\t7\t\tOne.\tTwo.\n',
        [Example('"He left.', 'He said "no".', 1), Example("One.", "Two.", 0)],
    ),
    "STS-B": (
        f"{STS_COLUMNS}\tscore\n0\tm\tf\t2012\t1\tnone\tnone\tA.\tB.\t5.000\n1\tm\tf\t2012\t1\tnone\tnone\tC.\tD.\t0.4\n",
        [Example("A.", "B.", 5.0), Example("C.", "D.", 0.4)],
    ),
    "QQP": (
        f"{QQP_COLUMNS}\n1\t2\t3\tWhy?\tHow?\t0\n\t\t\tWhat?\tWhich?\t1\n",
        [Example("Why?", "How?", 0), Example("What?", "Which?", 1)],
    ),
    "MNLI": (
        f"{MNLI_COLUMNS}\tlabel1\tgold_label\n0\t1\t1c\tg\t(\t(\tA.\tB.\tneutral\tcontradiction\n\t\t\tg\t(\t(\tC.\tD.\t-\tneutral\n",
        [Example("A.", "B.", 0), Example("C.", "D.", 2)],
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n\tWhy?\tSo.\tnot_entailment\n",
        [Example("Who?", "He.", 1), Example("Why?", "So.", 0)],
    ),
    "RTE": (RTE, [Example("A man.", "A person.", 1), Example("A cat.", "A dog.", 0)]),
    "WNLI": (
        "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t0\n1\tC.\tD.\t1\n",
        [Example("A.", "B.", 0), Example("C.", "D.", 1)],
    ),
}  # fmt: skip
SIDES = {"MNLI": ("dev_matched", "dev_mismatched")}


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def lay_out(folder: Path, name: str, text: str, encoding: str = "utf-8") -> None:
    for stem in ("train", *SIDES.get(name, ("dev",))):
        write(folder / name, f"{stem}.tsv", text, encoding)


def test_every_task_has_a_layout_here() -> None:
    assert list(GLUE) == list(LAYOUTS)


@pytest.mark.parametrize("name", list(LAYOUTS))
@pytest.mark.parametrize("form", ["plain", "byte order mark and CRLF", "no last line feed, empty lines"])
def test_a_task_is_read_from_the_columns_of_the_distribution(tmp_path: Path, name: str, form: str) -> None:
    """Unquoted, with empty ids, in every form a file may have got on its way."""
    text, expected = LAYOUTS[name]
    if form.startswith("byte"):
        lay_out(tmp_path, name, text.replace("\n", "\r\n"), "utf-8-sig")
    else:
        lay_out(tmp_path, name, text if form == "plain" else text.replace("\n", "\n\n").rstrip("\n"))
    data = load_glue(tmp_path, name)
    assert (data.suite, data.task, data.subset, data.skipped) == ("glue", name, False, ())
    assert data.train == expected
    assert data.dev == expected
    assert data.also == ({"MNLI-mm": expected} if name == "MNLI" else {})
    assert len(data.classes) == {"STS-B": 0, "MNLI": 3}.get(name, 2)


def test_the_sides_of_mnli_are_not_mistaken(tmp_path: Path) -> None:
    text, (first, second) = LAYOUTS["MNLI"]
    header, one, two = text.splitlines(keepends=True)
    write(tmp_path / "MNLI", "train.tsv", text)
    write(tmp_path / "MNLI", "dev_matched.tsv", header + one)
    write(tmp_path / "MNLI", "dev_mismatched.subset.tsv", header + two)
    data = load_glue(tmp_path, "MNLI")
    assert (data.dev, data.also) == ([first], {"MNLI-mm": [second]})
    assert data.side("MNLI") == [first] and data.side("MNLI-mm") == [second]
    assert data.subset


@pytest.mark.parametrize("subset_side", ["train", "dev"])
def test_a_subset_file_on_either_side_is_read_and_named_as_one(tmp_path: Path, subset_side: str) -> None:
    for split in ("train", "dev"):
        write(tmp_path / "RTE", f"{split}.subset.tsv" if split == subset_side else f"{split}.tsv", RTE)
    data = load_glue(tmp_path, "RTE")
    assert data.subset
    assert [example.label for example in data.dev] == [1, 0]  # class 1 is entailment


def test_a_whole_file_is_preferred_to_a_subset(tmp_path: Path) -> None:
    lay_out(tmp_path, "RTE", RTE)
    write(tmp_path / "RTE", "dev.subset.tsv", RTE[: RTE.rindex("1\tA cat")])
    data = load_glue(tmp_path, "RTE")
    assert len(data.dev) == 2
    assert not data.subset


def test_line_separators_within_a_text_end_no_row(tmp_path: Path) -> None:
    lay_out(tmp_path, "CoLA", "gj04\t1\t\tOne\rtwo\u2028three\x85four.\n")
    assert load_glue(tmp_path, "CoLA").dev == [Example("One\rtwo\u2028three\x85four.", None, 1)]


def test_the_short_rows_of_qqp_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [f"{i}\t1\t2\tWhy {i}?\tHow {i}?\t{i % 2}" for i in range(200)]
    short = [*rows[:50], "50\t1\t2\tWhy did", *rows[50:]]
    lay_out(tmp_path, "QQP", "\n".join([QQP_COLUMNS, *rows]) + "\n")
    write(tmp_path / "QQP", "train.tsv", "\n".join([QQP_COLUMNS, *short]) + "\n")
    data = load_glue(tmp_path, "QQP")
    assert data.train == data.dev
    assert data.skipped == ("train.tsv:52",)  # a header line, fifty rows
    broken = [*rows[:90], *(row.rpartition("\t")[0] for row in rows[90:])]
    write(tmp_path / "QQP", "dev.tsv", "\n".join([QQP_COLUMNS, *broken]) + "\n")
    with pytest.raises(DataError, match=r"dev\.tsv: 110 rows lack columns, the first at line 92"):
        load_glue(tmp_path, "QQP")


STS_ROW = "0\tm\tf\t2012\t1\tnone\tnone\tA.\tB."


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("RTE", "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\n", r"dev\.tsv:2: 3 columns where 4"),
        ("RTE", f"{RTE}2\tA.\tB.\tmaybe\n", r"dev\.tsv:4: label 'maybe' is none of not_entailment, entailment"),
        ("RTE", "index\tpremise\thypothesis\tlabel\n0\tA.\tB.\tentailment\n", r"dev\.tsv:1: the header has no column"),
        ("RTE", "index\tsentence1\tsentence2\tlabel\n", r"dev\.tsv holds no examples"),
        ("RTE", "", r"dev\.tsv is empty: put the GLUE file there"),
        ("CoLA", "", r"dev\.tsv holds no examples"),
        ("CoLA", "gj04\t1\t\tA.\ngj04\t2\t\tB.\n", r"dev\.tsv:2: label '2' is none of 0, 1"),
        ("QQP", f"{QQP_COLUMNS}\n1\t2\t3\tWhy?\tHow\t?\t0\n", r"dev\.tsv:2: 7 columns where 6"),
        *(
            ("STS-B", f"{STS_COLUMNS}\tscore\n{STS_ROW}\t5.0\n{STS_ROW}\t{bad}\n", rf"dev\.tsv:3: score '{bad}' is no")
            for bad in ("nan", "inf", "-0.1", "5.1", "", "high")
        ),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    lay_out(tmp_path, name, LAYOUTS[name][0])
    write(tmp_path / name, "dev.tsv", content)
    with pytest.raises(DataError, match=message):
        load_glue(tmp_path, name)


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path / "CoLA", "train.tsv", COLA)
    write(tmp_path / "CoLA", "dev.tsv", "gj04\t1\t\tIt is.\ngj04\t1\t\tcaf\u00e9.\n", "latin-1")
    with pytest.raises(DataError, match=r"dev\.tsv:2: not UTF-8"):
        load_glue(tmp_path, "CoLA")


def test_a_missing_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="CoLA is not a folder"):
        load_glue(tmp_path, "CoLA")
    write(tmp_path / "CoLA", "train.tsv", COLA)
    with pytest.raises(DataError, match=r"neither dev\.tsv nor dev\.subset\.tsv"):
        load_glue(tmp_path, "CoLA")


# --- test sets --------------------------------------------------------------------------------------------------------

TESTS = {
    "CoLA": "index\tsentence\n0\tA.\n1\tB.\n",
    "SST-2": "index\tsentence\n0\tA.\n1\tB.\n",
    "MRPC": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t5\t6\tA.\tC.\n1\t5\t6\tB.\tD.\n",
    "STS-B": f"{STS_COLUMNS}\n0\tm\tf\t2012\t1\tnone\tnone\tA.\tC.\n1\tm\tf\t2012\t1\tnone\tnone\tB.\tD.\n",
    "QQP": "id\tquestion1\tquestion2\n0\tA.\tC.\n1\tB.\tD.\n",
    "MNLI": f"{MNLI_COLUMNS}\n0\t1\t1c\tg\t(\t(\tA.\tC.\n1\t1\t1c\tg\t(\t(\tB.\tD.\n",
    "QNLI": "index\tquestion\tsentence\n0\tA.\tC.\n1\tB.\tD.\n",
    "RTE": "index\tsentence1\tsentence2\n0\tA.\tC.\n1\tB.\tD.\n",
    "WNLI": "index\tsentence1\tsentence2\n0\tA.\tC.\n1\tB.\tD.\n",
}


@pytest.mark.parametrize("name", list(GLUE))
def test_the_test_set_of_a_task_is_read_without_labels(tmp_path: Path, name: str) -> None:
    stems = {"MNLI": ("test_matched", "test_mismatched")}.get(name, ("test",))
    for stem in stems:
        write(tmp_path / name, f"{stem}.tsv", TESTS[name], "utf-8-sig")
    sets = load_tests(tmp_path, name)
    assert [found.name for found in sets] == (["MNLI-m", "MNLI-mm"] if name == "MNLI" else [name])
    single = name in ("CoLA", "SST-2")
    for found in sets:
        assert found.index == ("0", "1")
        assert [example.text_a for example in found.examples] == ["A.", "B."]
        assert [example.text_b for example in found.examples] == ([None, None] if single else ["C.", "D."])


@pytest.mark.parametrize("place", ["MNLI/diagnostic.tsv", "diagnostic/diagnostic.tsv", "AX/AX.tsv"])
def test_the_diagnostic_set_is_mnlis_wherever_it_lies(tmp_path: Path, place: str) -> None:
    for stem in ("test_matched", "test_mismatched"):
        write(tmp_path / "MNLI", f"{stem}.tsv", TESTS["MNLI"])
    write((tmp_path / place).parent, Path(place).name, "index\tsentence1\tsentence2\n7\tA.\tC.\n")
    found = load_tests(tmp_path, "MNLI")[-1]
    assert (found.name, found.index, found.examples[0].text_b) == ("AX", ("7",), "C.")


def test_a_test_set_lacks_nothing(tmp_path: Path) -> None:
    write(tmp_path / "RTE", "train.tsv", RTE)
    with pytest.raises(DataError, match=r"RTE/test\.tsv is missing, and a submission needs it"):
        load_tests(tmp_path, "RTE")
    write(tmp_path / "RTE", "test.tsv", TESTS["RTE"] + "\tE.\tF.\n")
    with pytest.raises(DataError, match=r"test\.tsv:4: has no index"):
        load_tests(tmp_path, "RTE")
    write(tmp_path / "QQP", "test.tsv", TESTS["QQP"] + "2\tE.\n")
    with pytest.raises(DataError, match=r"test\.tsv:4: 2 columns where 3"):
        load_tests(tmp_path, "QQP")


# --- the real files ---------------------------------------------------------------------------------------------------

REAL = os.environ.get("ELECTRA_TEST_DATA") or None  # set but empty: the Makefile found no such folder
needs_real = pytest.mark.skipif(
    REAL is None, reason="ELECTRA_TEST_DATA names no folder with the real GLUE files (glue/CoLA, …)"
)


@needs_real
@pytest.mark.parametrize(
    ("name", "train", "dev", "positive"),
    # official sizes of what is whole; positives of dev: 721 acceptable, 444 positive, 279 equivalent, …
    [
        ("CoLA", 8551, 1043, 721),
        ("SST-2", 67349, 872, 444),
        ("MRPC", 3668, 408, 279),
        ("QNLI", None, 5463, 2702),
        ("RTE", 2490, 277, 146),
        ("WNLI", 635, 71, 31),
    ],
)
def test_the_real_files_have_their_official_sizes(name: str, train: int | None, dev: int, positive: int) -> None:
    data = load_glue(Path(str(REAL)) / "glue", name)
    assert len(data.dev) == dev
    assert data.subset == (train is None)
    assert train is None or len(data.train) == train
    assert sum(example.label for example in data.dev) == positive
    assert data.majority(name) == max(positive, dev - positive) / dev


@needs_real
def test_the_real_files_of_values_and_of_three_classes() -> None:
    folder = Path(str(REAL)) / "glue"
    values = load_glue(folder, "STS-B")
    assert (len(values.train), len(values.dev), values.subset) == (5749, 1500, False)
    assert min(e.label for e in values.train) == 0.0 and max(e.label for e in values.train) == 5.0
    classes = load_glue(folder, "MNLI")
    assert {name: len(classes.side(name)) for name in ("MNLI", "MNLI-mm")} == {"MNLI": 1000, "MNLI-mm": 1000}
    assert {example.label for example in classes.dev} == {0, 1, 2}
    assert classes.subset and not classes.skipped
    assert load_glue(folder, "QQP").skipped == ()
