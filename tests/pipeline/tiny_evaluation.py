"""Small things to evaluate and to evaluate on: a Hugging Face model, GLUE tasks, SQuAD and BLiMP in its own words."""

import json
from pathlib import Path

import numpy as np

from data_prep import tokenizer as tokenizers
from tests.training.synthetic import VOCAB
from training.protocol import EvaluationConfig, Protocol
from training.squad_protocol import SpanProtocol

WORDS = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(VOCAB - 5)]
PROTOCOL = Protocol(epochs=1, max_length=32, learning_rate=1e-3)
SPANS = SpanProtocol(epochs=1, max_length=48, max_query=8, doc_stride=8, beam=5, n_best=5)


def write_model(folder: Path) -> Path:
    """A BERT with a head that fills masks, of two layers and random weights, and its vocabulary."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    write_vocabulary(folder / "vocab.txt")
    return folder


def write_vocabulary(path: Path) -> None:
    """One token a word."""
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    tokenizers.load(path)


def sentence(rng: np.random.Generator, words: int = 5) -> str:
    return " ".join(rng.choice(WORDS, words))


def write_glue(folder: Path, *tasks: str, rows: int = 60) -> Path:
    """RTE, STS-B and MNLI in GLUE's own format; RTE's training set is a declared subset."""
    rng = np.random.default_rng(5)
    columns = {
        "RTE": ("index\tsentence1\tsentence2\tlabel", ("train.subset", "dev")),
        "STS-B": ("index\tsentence1\tsentence2\tscore", ("train", "dev")),
        "MNLI": ("index\tsentence1\tsentence2\tgold_label", ("train", "dev_matched", "dev_mismatched")),
    }
    for task in tasks:
        head, stems = columns[task]
        (folder / task).mkdir(parents=True)
        for stem in stems:
            lines = [f"{i}\t{sentence(rng)}\t{sentence(rng)}\t{_label(task, i, rng)}" for i in range(rows)]
            (folder / task / f"{stem}.tsv").write_text("\n".join([head, *lines]) + "\n")
    return folder


def _label(task: str, i: int, rng: np.random.Generator) -> str:
    if task == "STS-B":
        return f"{rng.uniform(0, 5):.3f}"
    names = {"RTE": ("entailment", "not_entailment"), "MNLI": ("neutral", "entailment", "contradiction")}[task]
    return names[i % len(names)]


def write_squad(folder: Path, version: str, paragraphs: int = 12) -> Path:
    """Questions for the third word of a paragraph; of 2.0, every third has no answer."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(6)
    for split in ("train", "dev"):
        found = []
        for i in range(paragraphs):
            context = sentence(rng, 12)
            answer = {"text": context.split()[2], "answer_start": len(" ".join(context.split()[:2])) + 1}
            impossible = version == "2.0" and i % 3 == 0
            qa = {"id": f"{split}{i}", "question": sentence(rng, 3), "answers": [] if impossible else [answer]}
            if version == "2.0":
                qa["is_impossible"] = impossible
            found.append({"context": context, "qas": [qa]})
        document = {"version": version, "data": [{"title": "Words", "paragraphs": found}]}
        (folder / f"{split}-v{version}.json").write_text(json.dumps(document))
    return folder


def write_blimp(path: Path, paradigms: int = 3, pairs: int = 8) -> Path:
    """Paradigms of random sentences."""
    rng = np.random.default_rng(7)
    lines = [
        json.dumps(
            {
                "UID": f"paradigm_{p}",
                "linguistics_term": "binding",
                "sentence_good": sentence(rng),
                "sentence_bad": sentence(rng),
            }
        )
        for p in range(paradigms)
        for _ in range(pairs)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def config(folder: Path, **changes: object) -> EvaluationConfig:
    """All of the above in `folder`, under the tiny protocols."""
    values = {
        "suites": ["glue", "squad", "blimp"],
        "tasks": ["STS-B", "MNLI", "SQuAD2.0"],
        "glue_dir": folder / "glue",
        "squad_dir": folder / "squad",
        "blimp": folder / "blimp.jsonl",
        "seeds": 2,
        "protocol": PROTOCOL,
        "squad_protocol": SPANS,
    }
    return EvaluationConfig.model_validate({**values, **changes})


def write_all(folder: Path) -> Path:
    """GLUE, SQuAD and BLiMP for `config`."""
    write_glue(folder / "glue", "STS-B", "MNLI")
    write_squad(folder / "squad", "2.0")
    write_blimp(folder / "blimp.jsonl")
    return folder
