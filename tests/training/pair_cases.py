"""Minimal pairs as tests need them: a tokenizer of the test models' vocabulary, and where the real files lie."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from data_prep.rows import SpecialIds
from data_prep.tokenizer import Tokenizer
from data_prep.vocabularies import BERT_ROLES, ROBERTA_ROLES
from tests.training.hf_models import ROBERTA
from tests.training.synthetic import VOCAB
from training.blimp import Pair, PairData, Paradigm, load_blimp

REAL = os.environ.get("ELECTRA_TEST_DATA") or None  # set but empty: the Makefile found no such folder
needs_real = pytest.mark.skipif(REAL is None, reason="ELECTRA_TEST_DATA names no folder with the real files (blimp/…)")

MARKS = ["[", "]", "<", ">", "/", "mask", "MASK", "CLS", "SEP", "s"]  # what spells special tokens


def real(name: str) -> Path:
    """A real file or folder; for tests marked `needs_real`."""
    return Path(str(REAL)) / name


@cache
def official() -> PairData:
    """All of BLiMP."""
    return load_blimp(real("blimp"))


def cut(data: PairData, pairs: int) -> PairData:
    """The first pairs of each paradigm, which are the chosen ones."""
    return PairData(tuple(replace(paradigm, pairs=paradigm.pairs[:pairs]) for paradigm in data.paradigms))


def words() -> list[str]:
    """The words of the vocabulary that spell nothing special."""
    return [f"word{chr(97 + i // 10)}{chr(97 + i % 10)}" for i in range(VOCAB - 5 - len(MARKS))]


def tokenizer_of(special: SpecialIds) -> Tokenizer:
    """One token a word or mark, with the special ids given; what the vocabulary lacks is unknown."""
    roles = ROBERTA_ROLES if special is ROBERTA else BERT_ROLES
    vocabulary = {token: getattr(special, role) for role, token in roles.items()}
    vocabulary |= {word: 5 + i for i, word in enumerate(MARKS + words())}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=roles["unk"]))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(roles.values()))
    return Tokenizer(made, "the test's tokenizer")


def chance_pairs(paradigms: int, pairs: int, seed: int, longest: int = 30) -> list[Paradigm]:
    """Pairs of random words and one length, of which a network that knows nothing gets half."""
    rng, vocabulary = np.random.default_rng(seed), words()

    def pair() -> Pair:
        good, bad = rng.choice(vocabulary, (2, rng.integers(1, longest + 1)))
        return Pair(" ".join(good), " ".join(bad))

    return [Paradigm(f"p{i}", "chance", tuple(pair() for _ in range(pairs))) for i in range(paradigms)]
