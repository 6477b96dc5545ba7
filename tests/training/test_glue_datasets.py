"""The GLUE tasks out of `datasets`, offline: a local folder in the layout of nyu-mll/glue gives what the TSVs give."""

import os
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError
from training.glue import load_glue
from training.glue_datasets import load_dataset_tests, load_glue_dataset
from training.tasks import Example

PAIRS = [("A.", "B."), ("C.", "D."), ("E.", "F.")]


def lay_out(folder: Path, config: str, splits: dict[str, dict[str, list[Any]]], classes: list[str] | None) -> Path:
    """Parquet files as the hub has them; `classes`: their label column knows the names."""
    import datasets

    for split, columns in splits.items():
        table = datasets.Dataset.from_dict(columns)
        if classes is not None:
            table = table.cast_column("label", datasets.ClassLabel(names=classes))
        (folder / config).mkdir(parents=True, exist_ok=True)
        table.to_parquet(str(folder / config / f"{split}-00000-of-00001.parquet"))
    lines = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
    lines += [f"  - split: {split}\n    path: {config}/{split}-*" for split in splits]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def pairs(label: list[Any], texts: tuple[str, str] = ("sentence1", "sentence2")) -> dict[str, list[Any]]:
    columns = {column: [pair[i] for pair in PAIRS[: len(label)]] for i, column in enumerate(texts)}
    return {**columns, "label": label, "idx": list(range(len(label)))}


@pytest.mark.parametrize("named", [True, False])
def test_classes_are_told_by_their_names_or_by_that_layouts_order(tmp_path: Path, named: bool) -> None:
    """There 0 is entailment; here it is 1, as in the TSVs."""
    splits = {"train": pairs([0, 1]), "validation": pairs([1, 0, 0]), "test": pairs([-1, -1])}
    folder = lay_out(tmp_path / "hub", "rte", splits, ["entailment", "not_entailment"] if named else None)
    data = load_glue_dataset(folder, "RTE")
    assert data.train == [Example("A.", "B.", 1), Example("C.", "D.", 0)]
    assert [example.label for example in data.dev] == [0, 1, 1]
    assert not data.subset
    (test,) = load_dataset_tests(folder, "RTE")
    assert (test.name, test.index, test.examples) == (
        "RTE",
        ("0", "1"),
        [Example("A.", "B.", 0), Example("C.", "D.", 0)],
    )


def test_both_roads_give_the_same_data(tmp_path: Path) -> None:
    """MNLI, of the most sides and classes; and the values of STS-B, of which a column holds the nearest float32."""
    texts = ("premise", "hypothesis")
    splits = {
        "train": pairs([0, 1, 2], texts),
        "validation_matched": pairs([2, 0], texts),
        "validation_mismatched": pairs([1], texts),
        "test_matched": pairs([-1], texts),
        "test_mismatched": pairs([-1, -1], texts),
    }
    folder = lay_out(tmp_path / "hub", "mnli", splits, ["entailment", "neutral", "contradiction"])
    words = ["entailment", "neutral", "contradiction"]
    for stem, labels in (("train", [0, 1, 2]), ("dev_matched", [2, 0]), ("dev_mismatched", [1])):
        write_tsv(tmp_path / "MNLI" / f"{stem}.tsv", "gold_label", [words[label] for label in labels])
    data = load_glue_dataset(folder, "MNLI")
    assert data == load_glue(tmp_path, "MNLI")
    assert data.sha256() == load_glue(tmp_path, "MNLI").sha256()

    scores = {"train": [5.0, 0.4, 3.8], "dev": [1.667, 0.0]}
    for stem, values in scores.items():
        write_tsv(tmp_path / "STS-B" / f"{stem}.tsv", "score", [f"{value:.3f}" for value in values])
    import datasets

    singles = lay_out(
        tmp_path / "hub2", "stsb", {"train": pairs(scores["train"]), "validation": pairs(scores["dev"])}, None
    )
    for path in (singles / "stsb").iterdir():
        table = datasets.Dataset.from_parquet(str(path)).cast_column("label", datasets.Value("float32"))
        table.to_parquet(str(path))
    assert load_glue_dataset(singles, "STS-B") == load_glue(tmp_path, "STS-B")


def write_tsv(path: Path, label: str, labels: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{i}\t{a}\t{b}\t{word}" for i, ((a, b), word) in enumerate(zip(PAIRS, labels, strict=False))]
    path.write_text("\n".join([f"index\tsentence1\tsentence2\t{label}", *rows]) + "\n")


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": pairs([0, 1])}, "rte/validation cannot be loaded"),
        ({"train": pairs([0, -1]), "validation": pairs([0])}, r"rte/train, row 1: label -1 is no class of RTE"),
        ({"train": pairs([0, 2]), "validation": pairs([0])}, r"rte/train, row 1: label 2 is no class of RTE"),
        ({"train": pairs([0], ("premise", "hypothesis")), "validation": pairs([0])}, "has no column 'sentence1'"),
        (
            {"train": {**pairs([0]), "sentence1": [None]}, "validation": pairs([0])},
            "rte/train, row 0: sentence1 is empty",
        ),
    ],
)
def test_what_is_not_that_layout_is_named(tmp_path: Path, splits: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_glue_dataset(lay_out(tmp_path / "hub", "rte", splits, None), "RTE")


def test_a_dataset_that_is_nowhere_is_named(tmp_path: Path) -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(DataError, match=r"nowhere: cola/train cannot be loaded .*or give a GLUE folder"):
        load_glue_dataset(tmp_path / "nowhere", "CoLA")
