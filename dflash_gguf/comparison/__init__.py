"""Two drafts on the same inputs: what a quantization, or a mistake, costs.

Owns the comparison of what two drafts propose, and of their weights; never prints.
Way in: compare().
"""

from __future__ import annotations

from dflash_gguf.comparison.api import Comparison, Inputs, compare

__all__ = ["Comparison", "Inputs", "compare"]
