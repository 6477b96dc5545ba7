"""What a stored row says about itself: fragments, positions, token types, real tokens.

Everything is computed once, from the stored ids, before any masking or sampling; no module looks for special ids
afterwards, because a generator may sample one. A fragment begins with `cls` and ends with `sep`; padding stands only
at the end of the row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.settings import Settings


class SpecialIds(Settings):
    """Special token ids by role. RoBERTa's `<s>` is `cls` and `</s>` is `sep`; ids are never assumed."""

    cls: int
    sep: int
    pad: int
    mask: int
    unk: int | None = None

    def all(self) -> list[int]:
        """Every special id there is, sorted."""
        return sorted({i for i in (self.cls, self.sep, self.pad, self.mask, self.unk) if i is not None})


@dataclass(frozen=True, slots=True)
class RowStructure:
    """Arrays `[B, L]` derived from stored rows."""

    real: NDArray[np.bool_]  # not padding
    fragment: NDArray[np.int32]  # 1, 2, … within a row; 0 on padding
    positions: NDArray[np.int32]  # restart at 0 in each fragment; 0 on padding
    types: NDArray[np.int32]  # 0 up to and including the first segment's separator(s), then 1; 0 on padding
    special: NDArray[np.bool_]  # cls or sep

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Real tokens per row, `[B]`."""
        return self.real.sum(axis=1)


def structure(rows_BL: NDArray[np.integer], ids: SpecialIds) -> RowStructure:
    """The structure of stored rows `[B, L]`."""
    rows_BL = np.asarray(rows_BL)
    length = rows_BL.shape[1]
    is_cls, is_sep = rows_BL == ids.cls, rows_BL == ids.sep
    real = rows_BL != ids.pad
    fragment = np.cumsum(is_cls, axis=1, dtype=np.int32) * real
    column = np.arange(length, dtype=np.int32)[None, :]
    start = np.maximum.accumulate(np.where(is_cls, column, 0), axis=1)
    seps_before = np.cumsum(is_sep, axis=1, dtype=np.int32) - is_sep
    # separators before the fragment's own cls: constant within a fragment, carried forward from its first token
    seps_at_start = np.maximum.accumulate(np.where(is_cls, seps_before, 0), axis=1)
    previous_is_sep = np.zeros_like(is_sep)
    previous_is_sep[:, 1:] = is_sep[:, :-1]
    second = (seps_before > seps_at_start) & ~(is_sep & previous_is_sep)
    return RowStructure(
        real=real,
        fragment=fragment.astype(np.int32),
        positions=np.where(real, column - start, 0).astype(np.int32),
        types=(second & real).astype(np.int32),
        special=(is_cls | is_sep) & real,
    )


def fragment_lengths(fragment_BL: NDArray[np.integer]) -> NDArray[np.int64]:
    """Lengths of all fragments of all rows, flat, in no promised order."""
    rows, width = fragment_BL.shape
    offset = (np.arange(rows, dtype=np.int64) * (width + 1))[:, None]
    counts = np.bincount((fragment_BL + offset).ravel(), minlength=rows * (width + 1)).reshape(rows, width + 1)
    lengths = counts[:, 1:]
    return lengths[lengths > 0].astype(np.int64)
