"""What is true of every exported ELECTRA pair: the discriminator detects replacements better than chance.

Used on the tiny road of the tests and, by hand, on any experiment: `python -m tests.pipeline.acceptance OUT`.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from data_prep.manifest import load
from data_prep.reader import RowReader
from data_prep.rows import structure
from training.detection import sample_tokens
from training.masking import RowKeys, plan_masks, sampling_uniforms


def replaced_token_auc(out: Path, max_rows: int = 4000) -> tuple[float, float, int]:
    """AUC of the exported discriminator on held-out tokens (replaced by the exported generator against original), its
    standard error (Hanley & McNeil 1982), and the number of replaced tokens. Hugging Face models only; our own part is
    choosing positions and drawing samples."""
    corpus = out / "corpus"
    manifest = load(corpus)
    special = manifest.special
    generator = AutoModelForMaskedLM.from_pretrained(out / "export" / "generator").eval()
    discriminator = AutoModelForPreTraining.from_pretrained(out / "export" / "discriminator").eval()
    reader = RowReader(corpus, "heldout", manifest)
    slots = int(0.155 * manifest.seq_len)
    scores, labels = [], []
    for start in range(0, min(reader.n_rows, max_rows), 64):
        index = np.arange(start, min(start + 64, reader.n_rows))
        rows = reader.rows(index).astype(np.int64)
        shape = structure(rows, special)
        counter = RowKeys(1, np.zeros_like(index), index).counter()
        plan = plan_masks(
            rows, shape, counter, seed=1, mask_prob=0.15, slots=slots, mask_id=special.mask, mask_rate=0.85
        )
        common = {
            "attention_mask": torch.from_numpy(shape.real.astype(np.int64)),
            "token_type_ids": torch.from_numpy(shape.types.astype(np.int64)),
        }
        with torch.no_grad():
            logits = generator(input_ids=torch.from_numpy(plan.inputs), **common).logits
            positions = torch.from_numpy(plan.positions)
            picked = logits.gather(1, positions[:, :, None].expand(-1, -1, logits.shape[-1]))
            sampled = sample_tokens(picked, torch.from_numpy(sampling_uniforms(counter, 1, slots)))
            ids = torch.from_numpy(rows)
            filled = torch.where(torch.from_numpy(plan.weights) > 0, sampled, ids.gather(1, positions))
            corrupted = ids.scatter(1, positions, filled)
            found = discriminator(input_ids=corrupted, **common).logits
        scores.append(found[torch.from_numpy(shape.real)].numpy())
        labels.append((corrupted != ids)[torch.from_numpy(shape.real)].numpy())
    return auc_with_error(np.concatenate(labels), np.concatenate(scores))


def auc_with_error(labels: np.ndarray, scores: np.ndarray) -> tuple[float, float, int]:
    """The area under the ROC curve, its standard error by Hanley & McNeil, and the number of positives."""
    from sklearn.metrics import roc_auc_score

    area = float(roc_auc_score(labels, scores))
    n, m = int(labels.sum()), int((~labels).sum())
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (area * (1 - area) + (n - 1) * (q1 - area**2) + (m - 1) * (q2 - area**2)) / (n * m)
    return area, math.sqrt(variance), n


if __name__ == "__main__":
    area, error, replaced = replaced_token_auc(Path(sys.argv[1]))
    print(f"AUC {area:.4f} ± {error:.4f} on {replaced} replaced tokens: {(area - 0.5) / error:.1f} standard errors")
