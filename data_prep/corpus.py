"""What a corpus is to be: the settings of every step from files to rows.

Light on purpose: the command line reads this before anything heavy is imported. What the settings mean is in the module
each section comes from; `data_prep.plan` cuts the input into units and `data_prep.units` does the work on one.
"""

from typing import Annotated, Any

from pydantic import Field, model_validator

from data_prep.clean import CleaningConfig
from data_prep.packing import Layout
from data_prep.settings import Settings
from data_prep.sources import Source
from data_prep.tokenizer import TokenizerConfig

# Raised when the same settings come to mean other rows, so that records of older code are not taken for current ones.
RECIPE = 2


class CorpusConfig(Settings):
    """The `corpus` section of an experiment."""

    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    cleaning: CleaningConfig = CleaningConfig()
    drop_duplicates: bool = True  # exact ones, see `data_prep.dedup`
    tokenizer: TokenizerConfig = TokenizerConfig()
    layout: Layout = "segments"
    seq_len: Annotated[int, Field(ge=8, le=65_536)] = 128
    heldout_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01  # of the documents, by a hash of their text
    unit_bytes: Annotated[int, Field(ge=1_000)] = 64_000_000  # input bytes a unit; a whole file where it cannot be cut
    rows_per_shard: Annotated[int, Field(ge=64)] = 65_536

    @model_validator(mode="after")
    def _whole_members(self) -> "CorpusConfig":
        if self.rows_per_shard % 64:
            raise ValueError("rows_per_shard must be a multiple of 64, the rows of a shard's member")
        return self

    def identity(self) -> dict[str, Any]:
        """The settings as JSON without the places where files lie: the same on every machine."""
        value = self.model_dump(mode="json")
        for section in (*value["sources"], value["tokenizer"]):
            if section.get("path") is not None:
                section["path"] = True
        return value
