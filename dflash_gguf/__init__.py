"""Convert, inspect, validate and run DFlash drafts as GGUF.

The functions are imported when they are first used: `import dflash_gguf` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_gguf.checks import check
    from dflash_gguf.checks.diff import diff
    from dflash_gguf.comparison.api import compare
    from dflash_gguf.engine.api import bench
    from dflash_gguf.errors import DflashError
    from dflash_gguf.executor.api import draft, generate
    from dflash_gguf.library import convert, inspect, quantize
    from dflash_gguf.mxfp8 import verify_mxfp8, write_mxfp8
    from dflash_gguf.patching import patch

__all__ = [
    "DflashError",
    "bench",
    "check",
    "compare",
    "convert",
    "diff",
    "draft",
    "generate",
    "inspect",
    "patch",
    "quantize",
    "verify_mxfp8",
    "write_mxfp8",
]

_HOME = {
    "DflashError": "errors",
    "bench": "engine.api",
    "check": "checks",
    "compare": "comparison.api",
    "convert": "library",
    "diff": "checks.diff",
    "draft": "executor.api",
    "generate": "executor.api",
    "inspect": "library",
    "patch": "patching",
    "quantize": "library",
    "verify_mxfp8": "mxfp8",
    "write_mxfp8": "mxfp8",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("dflash-gguf")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
