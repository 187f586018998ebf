"""One kind of parallelism: our own threads over tiles of weights, and BLAS single-threaded inside each.

BLAS's own threads wait for one another by spinning: with anything else running, a small product takes 100 times
as long. Ours also read and dequantize, and no result depends on how many there are.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator


@cache
def pool() -> ThreadPoolExecutor:
    """The threads, one a processor. An overflow is no warning in them: what it makes, the probe reports."""
    return ThreadPoolExecutor(os.cpu_count(), "tiles", initializer=partial(np.seterr, over="ignore", invalid="ignore"))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep numpy's OpenBLAS to one thread meanwhile; with another BLAS nothing happens."""
    library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]  # noqa: SLF001
    get = getattr(library, "scipy_openblas_get_num_threads64_", None)
    put = getattr(library, "scipy_openblas_set_num_threads64_", None)
    if get is None or put is None:
        yield
        return
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)
