"""The proof of an exported folder: loaded again by transformers, it gives the training network's logits.

Compared on the first fragments of held-out rows, every output that the model class has: masked tokens, replaced tokens,
next sentence.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.errors import CheckError
from data_prep.manifest import Manifest
from data_prep.storage import Location

if TYPE_CHECKING:
    from training.network import Network

TOLERANCE = 1e-4
PROOF_ROWS = 16
# What a model class calls its outputs, by the head that gives them.
_OUTPUTS = {
    "ElectraForPreTraining": {"rtd": "logits"},
    "BertForPreTraining": {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"},
}
_MASKED_LM = {"mlm": "logits"}


def auto_class(architecture: str) -> str:
    """The `AutoModel…` that loads a folder of this model class."""
    return "AutoModelForPreTraining" if architecture in _OUTPUTS else "AutoModelForMaskedLM"


def prove(folder: Path, architecture: str, network: "Network", manifest: Manifest, corpus_dir: Location) -> float:
    """Reload the folder and compare logits on held-out rows; the largest difference. CheckError where the folder does
    not load completely or a logit differs by `TOLERANCE` or more."""
    import torch
    import transformers

    loader = getattr(transformers, auto_class(architecture))
    reloaded, info = loader.from_pretrained(folder, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise CheckError(f"{folder.name}: the exported folder does not load completely ({info}); report this")
    batch = proof_batch(corpus_dir, manifest, network.config.type_vocab)
    differences = []
    with torch.no_grad():
        theirs = reloaded.eval()(input_ids=batch["ids"], attention_mask=batch["real"], token_type_ids=batch["types"])
        x_BLE = network.embeddings(batch["ids"], batch["positions"], batch["types"])
        h_BLD = network.encoder(x_BLE, batch["real"])
        for head, output in _OUTPUTS.get(architecture, _MASKED_LM).items():
            tables = (network.embeddings.word.weight,) if head == "mlm" else ()
            gaps = (theirs[output] - network.heads[head](h_BLD, *tables)).abs()
            differences.append(float((gaps if head == "nsp" else gaps[batch["real"].bool()]).max()))
    difference = max(differences)
    if not difference < TOLERANCE:
        raise CheckError(
            f"{folder.name}: exported logits differ from the training model by {difference:.2g}; report this"
        )
    return difference


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
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
