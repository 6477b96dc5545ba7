"""The corpora of an experiment: `corpus:` itself, and its texts through another tokenizer or in another layout.

An arm reads `corpus:` unless an entry of `corpora:` names it. The entries say a tokenizer or a layout and nothing else,
so all arms learn from the same documents, with the same ones held out; arms of one corpus read the same rows in the
same order. Each corpus is prepared whole, into a folder of its own: the shards of one are no part of another.

`Reading`s are what planning needs of them; before a corpus is prepared they are assumed (`pipeline.assumed`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from data_prep import manifest as manifests
from data_prep import storage
from data_prep.corpus import CorpusConfig
from data_prep.manifest import Manifest
from data_prep.packing import Layout
from data_prep.settings import Settings
from data_prep.storage import Location
from data_prep.tokenizer import TokenizerConfig
from pipeline.assumed import assumed_manifest, is_assumed

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

MAIN = ""  # the name of `corpus:`


class Variant(Settings):
    """An entry of `corpora:`, and the arms that read it."""

    arms: Annotated[list[str], Field(min_length=1)]
    tokenizer: TokenizerConfig | None = None  # None: that of `corpus`
    layout: Layout | None = None  # None: that of `corpus`
    location: str | None = None  # a folder or address; None: `corpora/NAME` in the experiment's folder

    @model_validator(mode="after")
    def _says_something(self) -> "Variant":
        if self.tokenizer is None and self.layout is None:
            raise ValueError("is `corpus` over again: give it a tokenizer or a layout of its own, or leave it out")
        return self

    def of(self, corpus: CorpusConfig) -> CorpusConfig:
        """The whole settings of the corpus that this makes of `corpus`."""
        layout = self.layout or corpus.layout
        return corpus.model_copy(
            update={
                "tokenizer": self.tokenizer or corpus.tokenizer,
                "layout": layout,
                "discard_overflow": corpus.discard_overflow and layout == "segments",
                "location": self.location,
            }
        )


def refusal(corpus: CorpusConfig, variants: Mapping[str, Variant], arms: Sequence[str]) -> str | None:
    """Why these variants do not go with an experiment of this corpus and these arms, in a sentence; None where they
    do."""
    left, whole = list(arms), {"corpus": corpus.model_copy(update={"location": None})}
    for name, variant in variants.items():
        own = variant.of(corpus).model_copy(update={"location": None})
        if same := [other for other, config in whole.items() if config == own]:
            return f"corpora.{name}: is {same[0]} over again; its arms can read that, in one order with the others"
        whole[f"corpora.{name}"] = own
        for arm in variant.arms:
            if arm not in left:
                known = "no arm" if arm not in arms else "named twice"
                return f"corpora.{name}.arms: {arm} is {known} here; every arm reads one corpus"
            left.remove(arm)
    if variants and not left:
        return "corpora: no arm is left to read `corpus` itself; let it say what some of them read"
    return None


def places(experiment: "Experiment", out: Path) -> dict[str, storage.Folder]:
    """Where the corpora of the experiment in `out` are, by name."""
    return {name: _place(name, config.location, out) for name, config in experiment.corpus_configs().items()}


def _place(name: str, location: str | None, out: Path) -> storage.Folder:
    return storage.folder(location or (out / "corpora" / name if name else out / "corpus"))


def stored_name(config: Mapping[str, Any], arm: str | None) -> str:
    """Which corpus an arm, or the first stage of one, reads by a stored configuration; without an arm, `corpus:`."""
    if arm is None:
        return MAIN
    labels = [one.get("name") or one.get("objective") for one in config.get("arms", [])]
    label = arm if arm in labels else arm.removesuffix("-first")
    owners = [name for name, variant in (config.get("corpora") or {}).items() if label in variant["arms"]]
    return str(owners[0]) if owners else MAIN


def stored_place(config: Mapping[str, Any], name: str, out: Path) -> storage.Folder:
    """As `places`, of one corpus, by a stored configuration."""
    section = (config.get("corpora") or {}).get(name) if name else config.get("corpus")
    return _place(name, section.get("location") if isinstance(section, dict) else None, out)


# --- what planning needs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """A corpus as runs are planned from it. `place`: where its rows are at hand, None where they are not."""

    manifest: Manifest
    place: Location | None = None

    @property
    def assumed(self) -> bool:
        """Whether it is not prepared, and rows are taken to be full."""
        return is_assumed(self.manifest)


Readings = Mapping[str, Reading]


def prepared(folders: Mapping[str, storage.Folder]) -> Readings:
    """Of corpora that must be there: DataError where one is not."""
    return {name: Reading(manifests.load(folder), folder) for name, folder in folders.items()}


def assumed(experiment: "Experiment") -> Readings:
    """Before any is prepared."""
    return {name: Reading(assumed_manifest(config)) for name, config in experiment.corpus_configs().items()}


def found(experiment: "Experiment", out: Path) -> Readings:
    """Those that are prepared as they are, the others assumed."""
    there = {name: folder for name, folder in places(experiment, out).items() if folder.size(manifests.FILE_NAME)}
    return {**assumed(experiment), **prepared(there)}
