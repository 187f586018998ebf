"""Drafts in the real llama.cpp engine: speed and acceptance, measured.

Owns what is run and how it is counted; the engine lives in a process of its own, whose end is a row, not ours.
Way in: bench().
"""

from __future__ import annotations

from dflash_gguf.engine.api import BenchReport, BenchSettings, Row, bench

__all__ = ["BenchReport", "BenchSettings", "Row", "bench"]
