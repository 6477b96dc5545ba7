"""What a Hugging Face folder holds, from its config.json and the list of its files: no tensor is read.

Guarantees: what our encoder cannot be (another activation, relative positions, a decoder, …) is refused by its key, and
weights are safetensors or refused: pickle is never opened. Torch-free, so that a run can be planned from a folder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_prep import storage
from data_prep.errors import CheckpointError, ConfigError, DataError
from data_prep.settings import fingerprint
from training.hf_names import ARCHITECTURES, Architecture, Family, leading_rows
from training.sizes import EncoderConfig

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
}
# Keys that older files leave out, with transformers' defaults (the same in its three families).
_OPTIONAL: dict[str, tuple[str, float]] = {
    "type_vocab_size": ("type_vocab", 2),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "layer_norm_eps": ("layer_norm_eps", 1e-12),
    "initializer_range": ("init_range", 0.02),
}
_REQUIRED_VALUES: dict[str, Any] = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_PAD: dict[Family, int] = {"electra": 0, "bert": 0, "roberta": 1}


@dataclass(frozen=True, slots=True)
class HuggingFaceFolder:
    """A folder that can be imported: its model class, its encoder in our terms, and its weights files."""

    folder: Path
    architecture: Architecture
    config: EncoderConfig
    pad: int | None  # the id of its padding token; None: not said
    leading_rows: int  # of its position table, that ours lacks
    files: list[Path]

    def sha256(self) -> str:
        """What names its weights: the SHA-256 of the file; of several, that of their names and hashes."""
        hashes = {path.name: storage.sha256_of(path) for path in self.files}
        return next(iter(hashes.values())) if len(hashes) == 1 else fingerprint(hashes)


def is_hugging_face(folder: Path | str) -> bool:
    """Whether a folder looks like one that `save_pretrained` wrote; an address of an object store is none."""
    return "://" not in str(folder) and (Path(folder) / CONFIG).is_file()


def describe(folder: Path) -> HuggingFaceFolder:
    """What is in a folder. CheckpointError where it is no model's or its weights are not safetensors, ConfigError where
    our encoder cannot be that model; both name the file or key."""
    path = folder / CONFIG
    values = _read_object(path)
    architecture = _architecture(path, values)
    for key, wanted in _REQUIRED_VALUES.items():
        if values.get(key, wanted) != wanted:
            raise ConfigError(
                f"{path}: {key} is {values[key]!r}, and our encoder knows {wanted!r} only; choose another."
            )
    pad = _pad(path, values, architecture.family)
    leading = leading_rows(architecture.family, pad or 0)
    config = _encoder(path, values, architecture, leading)
    return HuggingFaceFolder(folder, architecture, config, pad, leading, _files(folder))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = storage.read_json(path)
    except DataError:
        raise CheckpointError(f"{path} is missing or is not JSON; give the folder of a Hugging Face model.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a JSON object; give the folder of a Hugging Face model.")
    return values


def _architecture(path: Path, values: dict[str, Any]) -> Architecture:
    found = values.get("architectures")
    known = [name for name in ARCHITECTURES if found == [name]]
    if not known:
        raise ConfigError(f"{path}: architectures is {found!r}; this version reads one of {', '.join(ARCHITECTURES)}.")
    return ARCHITECTURES[known[0]]


def _pad(path: Path, values: dict[str, Any], family: Family) -> int | None:
    """A left-out key stands for the family's default; only RoBERTa, whose positions hang on it, cannot do with null."""
    pad = values.get("pad_token_id", _PAD[family])
    if pad is None and family != "roberta":
        return None
    if not isinstance(pad, int) or pad < 0:
        raise ConfigError(f"{path}: pad_token_id is {pad!r}; set it to the id of the tokenizer's padding token.")
    return pad


def _encoder(path: Path, values: dict[str, Any], architecture: Architecture, leading: int) -> EncoderConfig:
    embedding = "embedding_size" if architecture.family == "electra" else "hidden_size"
    wanted = [*_SIZES, embedding, "max_position_embeddings"]
    if lacking := [key for key in wanted if not isinstance(values.get(key), int)]:
        raise ConfigError(f"{path}: {lacking[0]} is {values.get(lacking[0])!r} and must be an integer; set it.")
    found = {ours: values[key] for key, ours in _SIZES.items()}
    found |= {ours: values.get(key, default) for key, (ours, default) in _OPTIONAL.items()}
    found |= {"embedding_size": values[embedding], "max_positions": values["max_position_embeddings"] - leading}
    try:
        return EncoderConfig.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "sizes"
        raise ConfigError(f"{path}: {where}: {first['msg']} (in our terms); choose another model.") from None


def _files(folder: Path) -> list[Path]:
    """The weights files, in the order of their names; those of an index must be plain names in the folder."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.ckpt"))
        held = "holds pickled weights only, which are never opened" if pickled else "holds no weights"
        raise CheckpointError(
            f"{folder} {held}: put {WEIGHTS} beside {CONFIG} (transformers' save_pretrained writes it)."
        )
    weight_map = _read_object(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX}: its weight_map names no file; get it anew.")
    shards = sorted({str(name) for name in weight_map.values()})
    for name in shards:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{folder / INDEX}: {name!r} is not the name of a safetensors file; get it anew.")
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing; complete the folder.")
    return [folder / name for name in shards]
