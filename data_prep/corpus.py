"""What a corpus is to be: the settings of every step from files to rows.

Light on purpose: the command line reads this before anything heavy is imported. What the settings mean is in the module
each section comes from; `data_prep.plan` cuts the input into units and `data_prep.units` does the work on one.
"""

from typing import Annotated, Any

from pydantic import Field, model_validator

from data_prep.clean import CleaningConfig
from data_prep.decontaminate import Decontamination
from data_prep.errors import ConfigError
from data_prep.neardup import NearDuplicates
from data_prep.order import reduced_weights
from data_prep.packing import Layout
from data_prep.settings import Settings
from data_prep.sources import NOT_IDENTITY, Source
from data_prep.tokenizer import TokenizerConfig

# Raised when the same settings come to mean other rows, so that records of older code are not taken for current ones.
RECIPE = 3


class CorpusConfig(Settings):
    """The `corpus` section of an experiment."""

    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    location: str | None = None  # a folder or s3:// or gs:// address; None: `corpus` in the experiment's folder
    cleaning: CleaningConfig = CleaningConfig()
    drop_duplicates: bool = True  # exact ones, see `data_prep.dedup`
    near_duplicates: NearDuplicates | None = None  # None: not looked for
    decontamination: Decontamination | None = None  # None: no evaluation set is looked for
    tokenizer: TokenizerConfig = TokenizerConfig()
    layout: Layout = "segments"
    discard_overflow: bool = False  # `segments` only: drop what a row has no room for, as the reference code does
    seq_len: Annotated[int, Field(ge=8, le=65_536)] = 128
    heldout_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01  # of the documents, by a hash of their text
    unit_bytes: Annotated[int, Field(ge=1_000)] = 64_000_000  # input bytes a unit; a whole file where it cannot be cut
    rows_per_shard: Annotated[int, Field(ge=64)] = 65_536

    @model_validator(mode="after")
    def _consistent(self) -> "CorpusConfig":
        if self.rows_per_shard % 64:
            raise ValueError("rows_per_shard must be a multiple of 64, the rows of a shard's member")
        if self.discard_overflow and self.layout != "segments":
            raise ValueError("discard_overflow is for the layout segments; the layout packed discards nothing")
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ValueError(f"sources[{weighted.index(False)}] has no weight; give every source one, or none")
        if all(weighted):
            try:
                reduced_weights([source.weight or 1 for source in self.sources])
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self

    def identity(self) -> dict[str, Any]:
        """The settings as JSON without what may change between two calls: where files lie, how sources are mixed, how
        many bad records are borne."""
        value = self.model_dump(mode="json", exclude={"location"})
        for source in value["sources"]:
            for key in NOT_IDENTITY:
                source.pop(key, None)
        if value["tokenizer"]["path"] is not None:
            value["tokenizer"]["path"] = True
        if value["near_duplicates"] is not None:
            value["near_duplicates"].pop("alarm_fraction")
        if value["decontamination"] is not None:
            for evaluation_set in value["decontamination"]["sets"]:
                evaluation_set.pop("path", None)
        return value
