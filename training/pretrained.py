"""A trained network to go on from or to fine-tune, whether in one of our checkpoints or in a Hugging Face folder.

Guarantees: checkpoints are verified, Hugging Face folders are read as safetensors only, and the network is on the CPU
in evaluation mode with modules of its own. Of one of our objectives it is the main network, which is fine-tuned. Not
here: which checkpoint of a run, and the first weights of another run (`training.origin`).
"""

from pathlib import Path

from training import hf_import
from training.checkpoints import load_objective
from training.hf_config import is_hugging_face
from training.network import Network


def load_network(folder: Path | str) -> tuple[Network, list[str]]:
    """The network, and the pre-training heads that its kind can have and it lacks (none, of an objective's).

    CheckpointError where there is none or it is not whole; ConfigError where our encoder cannot be what a Hugging Face
    folder holds.
    """
    if is_hugging_face(folder):
        found = hf_import.read(Path(folder))
        return found.network(), list(found.lacked)
    objective, _ = load_objective(folder)
    return objective.networks()[objective.main], []
