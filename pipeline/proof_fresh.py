"""The other side of the proof: what a new user's process makes of an exported folder.

Run as a file, in a process of its own, with pairs of folders: an exported one, and what it must come to
(`pipeline.proof` writes it). Imports nothing of ours, so that nothing of ours can lend the folder what it lacks.
Prints one JSON line: for each folder its `problems`, and the largest difference of its logits, as they come by default
(`difference`) and in float64 (`exact`).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOLERANCE, EXACT_TOLERANCE = 1e-4, 1e-9  # of fp32 and of float64
WEIGHTS = "model.safetensors"


def examine(folder: Path, expected: Path) -> dict[str, Any]:
    """What is wrong with a folder, and how far its logits are off; `inf` where they could not be compared."""
    facts = json.loads((expected / "expected.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {"problems": [], "difference": float("inf"), "exact": float("inf")}
    try:
        found["problems"] += tokenizer_problems(folder, facts)
        found["problems"] += loading_problems(folder, facts)
        found["difference"] = difference(folder, expected, facts, "default")
        found["exact"] = difference(folder, expected, facts, "float64")
    except Exception as error:  # whatever a broken folder makes of transformers is a failed proof
        found["problems"].append(f"cannot be used ({type(error).__name__}: {' '.join(str(error).split())[:300]})")
        return found
    found["problems"] += logit_problems(found, facts["dtype"])
    return found


def logit_problems(found: dict[str, Any], dtype: str) -> Iterator[str]:
    """In words: logits that are no numbers, or too far off. A comparison with one that is none does not hold.

    Of bf16 and fp16 the float64 logits are compared, to the same 1e-9, with those of the training network whose weights
    were rounded alike: that is exact in what an export can get wrong. As a user gets them by default they must be
    numbers, no more: what 8 or 11 bits of the activations do to a logit depends on depth, size and kernel, so no bound
    on it could tell a fault from rounding.
    """
    default, exact = found["difference"], found["exact"]
    if not default < float("inf"):
        yield f"gives logits that are no numbers in {dtype}"
    if dtype == "float32" and not default <= TOLERANCE:
        yield f"its logits differ from the training model's by {default:.2g}, and by {exact:.2g} in float64"
    elif not exact <= EXACT_TOLERANCE:
        yield f"its logits differ from the training model's by {exact:.2g} in float64"


def tokenizer_problems(folder: Path, facts: dict[str, Any]) -> Iterator[str]:
    """A tokenizer that is not the one of training."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.is_fast:
        yield "its tokenizer is a slow one"
    if tokenizer.get_vocab() != facts["vocabulary"]:
        yield "its tokenizer has another vocabulary, or another order of it"
    for name, wanted in facts["files"].items():
        if _entries(folder / name) != wanted:
            yield f"its {name} is not what its tokenizer goes by"
    if tokenizer.model_max_length != facts["positions"]:
        yield f"its tokenizer cuts at {tokenizer.model_max_length} tokens, and the model knows {facts['positions']}"
    for role, wanted in facts["special"].items():
        if getattr(tokenizer, f"{role}_token_id") != wanted:
            yield f"its tokenizer's {role} token is {getattr(tokenizer, f'{role}_token_id')} instead of {wanted}"
    for text, ids, decoded in facts["texts"]:
        if tokenizer(text, split_special_tokens=True)["input_ids"] != ids:
            yield f"its tokenizer makes other tokens of {text[:40]!r}"
        elif tokenizer.decode(ids[1:-1], clean_up_tokenization_spaces=False) != decoded:
            yield f"its tokenizer does not lead back from the tokens of {text[:40]!r}"
    first, second, ids = facts["pair"]
    pair = tokenizer(first, second)
    if pair["input_ids"] != ids:
        yield "its tokenizer joins a pair of texts in another way"
    elif pair.get("token_type_ids", [0] * len(ids)) != facts["pair_types"]:
        yield "its tokenizer gives a pair of texts other token types than the model knows"
    if facts["special"]["mask"] not in tokenizer(f"a {tokenizer.mask_token} b")["input_ids"]:
        yield "its tokenizer does not know its own mask token in a text"
    yield from _file_problems(folder / "tokenizer.json", facts, tokenizer.mask_token)


def _file_problems(path: Path, facts: dict[str, Any], mask: str) -> Iterator[str]:
    """A tokenizer.json that is not the tokenizer of training to programs that go by that file alone: transformers makes
    most of it anew."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    if facts["special"]["mask"] not in tokenizer.encode(f"a {mask} b").ids:
        yield f"its {path.name} does not know its mask token"
    tokenizer.encode_special_tokens = True
    for text, ids, _ in facts["texts"]:
        if tokenizer.encode(text).ids != ids:
            yield f"its {path.name} makes other tokens of {text[:40]!r}"
    first, second, ids = facts["pair"]
    if tokenizer.encode(first, second).ids != ids:
        yield f"its {path.name} joins a pair of texts in another way"


def _entries(path: Path) -> Any:
    """What a vocabulary file holds that is for programs without tokenizer.json: JSON, merges, or tokens by line."""
    text = path.read_bytes().decode("utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    lines = text.removesuffix("\n").split("\n")
    if path.name == "merges.txt":
        return [line for line in lines if not line.startswith("#version")]
    return {token: number for number, token in enumerate(lines)}


def loading_problems(folder: Path, facts: dict[str, Any]) -> Iterator[str]:
    """A model that does not load completely, or says something else of itself than it is."""
    from safetensors import safe_open

    model, info = _model(folder, facts, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            yield f"does not load completely ({kind.replace('_', ' ')}: {', '.join(map(str, sorted(info[kind])[:3]))})"
    if model.config.architectures != [facts["architecture"]] or type(model).__name__ != facts["architecture"]:
        yield f"loads as {type(model).__name__}, which is not {facts['architecture']}"
    if str(model.dtype) != f"torch.{facts['dtype']}":
        yield f"loads as {model.dtype}, and holds {facts['dtype']}"
    for role, name in (("pad", "pad_token_id"), ("cls", "bos_token_id"), ("sep", "eos_token_id")):
        if getattr(model.config, name) != facts["special"][role]:
            yield f"config.json: {name} is {getattr(model.config, name)} instead of {facts['special'][role]}"
    with safe_open(folder / WEIGHTS, framework="pt") as weights:
        if twice := sorted(set(weights.keys()) & set(facts["tied"])):
            yield f"{WEIGHTS} holds {twice[0]}, which is tied, a second time"
    output = model.get_output_embeddings() if facts["tied"] else None
    if output is not None and output.weight is not model.get_input_embeddings().weight:
        yield "its output layer is not tied to its word embeddings"


def difference(folder: Path, expected: Path, facts: dict[str, Any], precision: str) -> float:
    """The largest difference of any logit, row by row: in the precision that a user gets by `default`, or in
    `float64`; `nan` where one is no number."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(expected / "expected.safetensors")
    model = _model(folder, facts, **({} if precision == "default" else {"dtype": torch.float64})).eval()
    worst = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for row in range(facts["rows"]):
            ids, real, types, picked = (tensors[f"{name}.{row}"] for name in ("ids", "real", "types", "picked"))
            given = model(input_ids=ids[None], attention_mask=real[None], token_type_ids=types[None])
            for head, output in facts["outputs"].items():
                logits = given[output][0] if head == "nsp" else given[output][0][picked]
                gap = (logits.double() - tensors[f"{head}.{precision}.{row}"].double()).abs().max()
                worst = torch.where(gap.isnan(), gap, torch.maximum(worst, gap))
    return float(worst)


def _model(folder: Path, facts: dict[str, Any], **options: Any) -> Any:
    import transformers

    return getattr(transformers, facts["auto"]).from_pretrained(folder, **options)


def main(arguments: list[str]) -> None:
    """Examine each pair of folders."""
    paths = [Path(argument) for argument in arguments]
    print(json.dumps([examine(folder, expected) for folder, expected in zip(paths[::2], paths[1::2], strict=True)]))


if __name__ == "__main__":
    main(sys.argv[1:])
