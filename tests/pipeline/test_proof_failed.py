"""What an export whose proof fails leaves behind, and what half precision cannot hold."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from data_prep.errors import CheckError, PreflightError
from pipeline import model_card
from pipeline.export import MARKER, export
from pipeline.export_sources import at
from tests.pipeline import exported
from tests.pipeline.test_proof import (
    ELECTRA,
    configured,
    drop_layer,
    in_this_process,
    swap_queries_and_keys,
    swap_tokens,
    tokenizer,
    weights,
)
from training.arms import BertArm
from training.objectives import Objective

__all__ = ["in_this_process"]
pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    """Have every export spoiled after it was written."""
    write = model_card.write

    def by(spoil: Callable[[Path], None]) -> None:
        def spoiling(folder: Path, *rest: Any) -> None:
            write(folder, *rest)
            spoil(folder)

        monkeypatch.setattr(model_card, "write", spoiling)

    return by


def swap_rows(tensors: dict[str, Tensor]) -> None:
    """Of two words that no text of the proof has."""
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][[150, 151]] = tensors[name][[151, 150]]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (weights(drop_layer), "discriminator: the exported folder does not come back"),
        (weights(swap_queries_and_keys), "discriminator: encoder.layers.0.qkv.weight does not come back"),
        (weights(swap_rows), "discriminator: embeddings.word.weight does not come back"),
        (tokenizer(swap_tokens), "discriminator, as exported: its tokenizer has another vocabulary"),
        (configured(hidden_dropout_prob=0.5), "discriminator: dropout comes back from the exported folder as 0.5 inst"),
        (configured(pad_token_id=1), "discriminator, as exported: config.json: pad_token_id is 1"),
    ],
)
def test_a_failed_proof_leaves_nothing_that_looks_finished(
    spoil: Callable[[Path], None],
    words: str,
    spoiled: Callable[[Callable[[Path], None]], None],
    tmp_path: Path,
) -> None:
    out = exported.experiment(tmp_path / "out")
    run = exported.begun_run(out, ELECTRA)
    spoiled(spoil)
    with pytest.raises(CheckError) as caught:
        export(at(run), tmp_path / "to")
    assert str(caught.value).startswith(words) and str(caught.value).endswith("nothing was exported")
    assert [path.name for path in (tmp_path / "to").iterdir()] == [".lock"]


def test_a_failed_proof_leaves_an_earlier_export_as_it_was(
    spoiled: Callable[[Callable[[Path], None]], None], tmp_path: Path
) -> None:
    out = exported.experiment(tmp_path / "out")
    run = exported.begun_run(out, ELECTRA, steps=(3, 6))
    export(at(run, 3), tmp_path / "to")
    before = dict(_contents(tmp_path / "to"))
    assert MARKER in before
    spoiled(weights(swap_queries_and_keys))
    with pytest.raises(CheckError):
        export(at(run, 6), tmp_path / "to")
    assert dict(_contents(tmp_path / "to")) == before
    assert [one.new for one in export(at(run, 3), tmp_path / "to")] == [False, False]


def test_folders_of_another_checkpoint_go_or_are_in_the_way(tmp_path: Path) -> None:
    """A folder says of itself that it holds one checkpoint's networks, and nothing else is taken for one of them."""
    out, to = exported.experiment(tmp_path / "out"), tmp_path / "to"
    electra = exported.begun_run(out, ELECTRA)
    bert = exported.begun_run(out, BertArm(learning_rate=1e-3))
    export(at(electra), to)
    export(at(bert), to)
    assert sorted(path.name for path in to.iterdir()) == [".lock", "encoder", MARKER]
    export(at(electra), to)
    assert sorted(path.name for path in to.iterdir()) == [".lock", "discriminator", MARKER, "generator"]
    (to / "generator" / "notes.txt").write_text("mine")
    with pytest.raises(PreflightError, match=r"generator: is no network of .*; choose another folder"):
        export(at(bert), to)
    assert (to / "generator" / "notes.txt").exists() and (to / "discriminator").exists()


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


def test_a_weight_that_half_precision_cannot_hold_is_named(tmp_path: Path) -> None:
    def enlarge(objective: Objective) -> None:
        objective.networks()["discriminator"].parameters()["encoder.layers.1.ffn_in.weight"][3, 5] = 1e5

    out = exported.experiment(tmp_path / "out")
    run = exported.begun_run(out, ELECTRA, change=enlarge)
    words = r"encoder.layers.1.ffn_in.weight holds 1e\+05, which float16 cannot; export with --dtype bf16, or fp32"
    with pytest.raises(CheckError, match=words):
        export(at(run), tmp_path / "to", "fp16")
    assert [path.name for path in (tmp_path / "to").iterdir()] == [".lock"]
    assert export(at(run), tmp_path / "to", "bf16")[0].new


def test_activations_that_overflow_in_half_precision_are_found(tmp_path: Path) -> None:
    """Each weight has room in fp16, their sums have not."""

    def enlarge(objective: Objective) -> None:
        objective.networks()["discriminator"].parameters()["encoder.layers.1.ffn_in.weight"].fill_(3e4)

    out = exported.experiment(tmp_path / "out")
    run = exported.begun_run(out, ELECTRA, change=enlarge)
    with pytest.raises(CheckError, match="discriminator, as exported: gives logits that are no numbers in flo"):
        export(at(run), tmp_path / "to", "fp16")
    assert [path.name for path in (tmp_path / "to").iterdir()] == [".lock"]


def test_a_checkpoint_that_holds_no_numbers_is_said_to(tmp_path: Path) -> None:
    def break_it(objective: Objective) -> None:
        objective.networks()["discriminator"].parameters()["encoder.layers.0.qkv.bias"][0] = float("nan")

    out = exported.experiment(tmp_path / "out")
    run = exported.begun_run(out, ELECTRA, change=break_it)
    with pytest.raises(CheckError, match=r"encoder.layers.0.qkv.bias of the checkpoint holds .* no numbers; choose an"):
        export(at(run), tmp_path / "to")
