"""The proof of exported folders: in a fresh process, a folder gives what the training network and its tokenizer give.

`expect` writes down what they give: the logits of every head on held-out rows and on a made one that fills every
position, in fp32 and, of the weights as they are exported, in float64; the ids of texts that tokenizers stumble over.
`prove` has a process of its own (`pipeline.proof_fresh`) load the folders with `AutoModel…` and `AutoTokenizer` and
compare. `prove_values` reads a folder back by our own import: every value is the one that was exported, also in the
rows that no text of the proof reaches.

Shape suffixes: L tokens of a row, K compared positions, E embedding size, D hidden size.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep import storage
from data_prep.errors import CheckError, ElectraError
from data_prep.manifest import Manifest
from data_prep.rows import SpecialIds
from data_prep.storage import Location
from pipeline import proof_fresh
from training.hf_names import ARCHITECTURES, tied

if TYPE_CHECKING:
    from data_prep.tokenizer import Tokenizer
    from training.network import Network

PROOF_ROWS = 8
COMPARED = 16  # positions of a row, evenly spread: all logits of a large vocabulary take much room
# What a model class calls its outputs, by the head that gives them.
_OUTPUTS = {
    "ElectraForPreTraining": {"rtd": "logits"},
    "BertForPreTraining": {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"},
}
_MASKED_LM = {"mlm": "logits"}
# Case, accents (composed and not), scripts without blanks, emoji, right to left, characters that are dropped or are
# none, long words, what looks like a special token or a continuation, and every kind of blank.
TEXTS = (
    "", " ", "\t\n ", "The chef ate the meal.", "CAFÉ naïve Ångström", "e\u0301 é E\u0301",
    "中文 日本語ひらがな 한국어",
    "🙂 👩\u200d👩\u200d👧 🏴", "مرحبا שלום", "\u202eabc\u202c", "a\u0000b\u200bc\ufeffd\ufffd", "ﬁ ½ Ⅷ ſ", "x" * 300,
    "don't ca n't . , !", "##ing ## #", "[MASK] [CLS] a[SEP]b [PAD] [UNK]", "<mask> <s> a</s>b <pad> <unk>", "[mask",
    "Ġ ▁ Ċ", "1,234,567.89 €", "tabs\tand\r\nlines\u2028here", " leading and trailing ", "two  blanks\u00a0\u3000wide",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proved:
    """The largest difference of a folder's logits from the training network's, and in float64 from that with the
    weights as they were exported."""

    difference: float
    exact: float


def auto_class(architecture: str) -> str:
    """The `AutoModel…` that loads a folder of this model class."""
    return "AutoModelForPreTraining" if architecture in _OUTPUTS else "AutoModelForMaskedLM"


def expect(
    folder: Path,
    architecture: str,
    network: "Network",
    exported: "Network",
    manifest: Manifest,
    corpus_dir: Location,
    words: "Tokenizer",
) -> None:
    """Write down in `folder` what a folder of this class must come to: that of `network`, in fp32, with the weights of
    `exported`, which may be rounded, and the tokenizer `words`."""
    import torch
    from safetensors.torch import save_file

    from training.hf_export import cast

    config = network.config
    outputs = _OUTPUTS.get(architecture, _MASKED_LM)
    held_out = proof_batch(corpus_dir, manifest, config.type_vocab)
    rows = [{name: tensor[row] for name, tensor in held_out.items()} for row in range(len(held_out["ids"]))]
    rows.append(full_row(manifest.special, config.vocab_size, config.max_positions, config.type_vocab))
    tensors = {f"{name}.{number}": tensor for number, row in enumerate(rows) for name, tensor in row.items()}
    for precision, one in (("default", network), ("float64", cast(exported, torch.float64))):
        for number, row in enumerate(rows):
            for head, logits in _logits(one, row, list(outputs)):
                tensors[f"{head}.{precision}.{number}"] = logits
    storage.make_folder(folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "expected.safetensors")
    dtype = next(iter(exported.parameters().values())).dtype
    target = ARCHITECTURES[architecture]
    facts = {
        "architecture": architecture,
        "auto": auto_class(architecture),
        "dtype": str(dtype).removeprefix("torch."),
        "outputs": outputs,
        "rows": len(rows),
        "positions": config.max_positions,
        "tied": list(tied(target.family)) if "mlm" in target.heads else [],
        **_words(words, manifest, config.type_vocab),
    }
    storage.write_json(folder / "expected.json", facts)


def prove(folders: Mapping[Path, Path]) -> dict[Path, Proved]:
    """Load exported folders in one fresh process and compare each with what `expect` wrote for it. CheckError naming
    the first folder that is not that, and why."""
    found = dict(zip(folders, _examined(folders), strict=True))
    for folder, one in found.items():
        if one["problems"]:
            raise CheckError(f"{_name(folder)}, as exported: {one['problems'][0]}; nothing was exported")
    return {folder: Proved(one["difference"], one["exact"]) for folder, one in found.items()}


def _examined(folders: Mapping[Path, Path]) -> list[dict[str, Any]]:
    """What `proof_fresh.examine` finds in a process of its own."""
    arguments = [str(path.absolute()) for pair in folders.items() for path in pair]
    done = subprocess.run(
        # -P: the folder of that file holds modules that are called like some of Python's own
        [sys.executable, "-P", str(Path(proof_fresh.__file__)), *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise CheckError(f"the process that proves exported folders ended with {done.returncode} ({last}); try again")
    examined: list[dict[str, Any]] = json.loads(lines[-1])
    return examined


def _name(folder: Path) -> str:
    """Of the network: its folder has a temporary name as long as it is not proved."""
    return folder.name.strip(".").removesuffix(".tmp")


def prove_values(folder: Path, exported: "Network") -> None:
    """Read a folder back by `training.hf_import`; CheckError where a value, of the weights or of the configuration that
    no logits show (dropout), is not, bit for bit, the one of `exported`, or is missing. Heads that the class has no
    place for are not asked for."""
    import torch

    from training import hf_import

    try:
        imported = hf_import.read(folder)
    except ElectraError as error:
        raise CheckError(
            f"{_name(folder)}: the exported folder does not come back ({error}); nothing was exported"
        ) from None
    for key, wanted in exported.config:
        if (found := getattr(imported.config, key)) != wanted:
            raise CheckError(
                f"{_name(folder)}: {key} comes back from the exported folder as {found} instead of {wanted}; nothing "
                "was exported"
            )
    for name, parameter in exported.parameters().items():
        part, head, *_ = name.split(".")
        if part == "heads" and head not in imported.heads:
            continue
        if name not in imported.tensors or not torch.equal(imported.tensors[name], parameter):
            raise CheckError(
                f"{_name(folder)}: {name} does not come back from the exported folder; nothing was exported"
            )


def proof_batch(corpus_dir: Location, manifest: Manifest, type_vocab: int) -> dict[str, Any]:
    """The first fragments of the first held-out rows as tensors `[B, L]`: what a Hugging Face model can be fed. Token
    types that the model does not know are its last one, as in training."""
    import torch

    from data_prep.reader import RowReader
    from data_prep.rows import structure

    reader = RowReader(corpus_dir, "heldout", manifest)
    rows = reader.rows(np.arange(min(PROOF_ROWS, reader.n_rows), dtype=np.int64)).astype(np.int64)
    shape = structure(rows, manifest.special)
    first = shape.fragment == 1
    arrays = {
        "ids": np.where(first, rows, manifest.special.pad),
        "real": first.astype(np.int64),
        "types": np.minimum(np.where(first, shape.types, 0), type_vocab - 1).astype(np.int64),
        "positions": np.where(first, shape.positions, 0).astype(np.int64),
        "picked": np.stack([_picked(row) for row in first]),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def full_row(special: SpecialIds, vocab_size: int, length: int, type_vocab: int) -> dict[str, Any]:
    """A made row `[L]` that fills every position, with words from the whole vocabulary and every token type."""
    import torch

    words = np.setdiff1d(np.arange(vocab_size), special.all())
    ids = words[np.linspace(0, len(words) - 1, length).astype(np.int64)]
    ids[0], ids[length // 2], ids[-1] = special.cls, special.sep, special.sep
    arrays = {
        "ids": ids,
        "real": np.ones(length, dtype=np.int64),
        "types": np.arange(length) * type_vocab // length,
        "positions": np.arange(length),
        "picked": _picked(np.ones(length, dtype=np.bool_)),
    }
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def _picked(real_L: Any) -> Any:
    """Of the real positions, `COMPARED`, the first and the last among them; some stand twice where there are fewer."""
    where = np.flatnonzero(real_L)
    return where[np.linspace(0, len(where) - 1, COMPARED).astype(np.int64)]


def _logits(network: "Network", row: dict[str, Any], heads: list[str]) -> Iterator[tuple[str, Any]]:
    """What each head gives at the picked positions `[K, …]`, or over the row."""
    import torch

    with torch.no_grad():
        x_LE = network.embeddings(row["ids"][None], row["positions"][None], row["types"][None])
        h_LD = network.encoder(x_LE, row["real"][None])
        for head in heads:
            tables = (network.embeddings.word.weight,) if head == "mlm" else ()
            if head == "nsp":
                yield head, network.heads[head](h_LD)[0]
            else:
                yield head, network.heads[head](h_LD[:, row["picked"]], *tables)[0]


def _words(words: "Tokenizer", manifest: Manifest, type_vocab: int) -> dict[str, Any]:
    """What the tokenizer must come to. A special token that is spelled out in a text is text, in training."""
    special = manifest.special

    def framed(*parts: list[int]) -> list[int]:
        between = [special.sep] * manifest.pair_separators
        joined = [*parts[0], *(i for part in parts[1:] for i in (*between, *part))]
        return [special.cls, *joined, special.sep]

    first, second, state = "The chef ate the meal", "and left", words.state()
    one, two = words.encode([first, second])
    return {
        "files": _vocabulary_files(state["model"]),
        "vocabulary": state["model"]["vocab"] | {added["content"]: added["id"] for added in state["added_tokens"]},
        "special": {role: value for role, value in special.model_dump().items() if value is not None},
        "texts": [(t, framed(ids), words.decode(ids)) for t, ids in zip(TEXTS, words.encode(TEXTS), strict=True)],
        "pair": (first, second, framed(one, two)),
        # RoBERTa's tokenizer tells of no types: to it a pair is one text
        "pair_types": _types(
            1 + len(one) + manifest.pair_separators, len(two) + 1, type_vocab if manifest.pair_separators == 1 else 1
        ),
    }


def _types(first: int, second: int, type_vocab: int) -> list[int]:
    """Token types of a pair of so many tokens each; those that the model does not know are its last one."""
    return [0] * first + [min(1, type_vocab - 1)] * second


def _vocabulary_files(model: dict[str, Any]) -> dict[str, Any]:
    """What the files hold that programs without tokenizer.json read."""
    if model["type"] == "WordPiece":
        return {"vocab.txt": model["vocab"]}
    if model["type"] == "BPE":
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        return {"vocab.json": model["vocab"], "merges.txt": merges}
    return {}
