"""Loops compiled to machine code by numba: the decorator, and where what it compiled is kept.

A kernel is a plain loop over arrays. It is compiled once on a machine, on first use, and read from a cache from then on
(beside the source, else in the user's cache folder, else in a folder of this user among the temporary files; where none
of these can be written every process compiles anew). Kernels check no index, so whoever writes one proves that its
indices lie inside. The cache looks at the file of a kernel only, so a kernel calls none of another file. It makes no
array either: what it fills is handed to it.
Importing this imports numba: modules that settings need do so inside functions.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")

# A kernel makes no array, so none is counted: that and what is put in line are half of the time of small functions.
_OPTIONS: dict[str, Any] = {"_nrt": False, "forceinline": True}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function, for the types it is first called with."""
    for _ in range(2):
        try:
            return numba.njit(cache=True, **_OPTIONS)(function)
        except RuntimeError:  # numba found no folder for its cache
            vars(numba.config)["CACHE_DIR"] = _private_folder()
    return numba.njit(**_OPTIONS)(function)


def _private_folder() -> str:
    """A folder that nobody else can write, for what lies in a cache is run; empty where there can be none."""
    folder = Path(tempfile.gettempdir()) / f"compiled-kernels-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return ""
    private = status.st_uid == os.getuid() and status.st_mode & 0o077 == 0 and not folder.is_symlink()
    return str(folder) if private and os.access(folder, os.W_OK) else ""
