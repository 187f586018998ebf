"""The real engine accepts the same tokens in every block as the reference and our executor do."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from support.executor_engine import target_gguf
from support.executor_fixture import converted, runs
from support.real_engine import ask_engine

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp")


@pytest.mark.parametrize("draft", ["draft", "draft-v1"])
def test_sequences_of_the_engine(draft: str, tmp_path: Path) -> None:
    """The server's counter of accepted tokens at every block's end; it anchors the first block as the reference does.

    A budget that ends with block j leaves the counter at the sum of the first j lengths only if every block
    before it ended where the reference's did.
    """
    rows = runs(draft)
    target, file = target_gguf(tmp_path / "target.gguf"), converted(tmp_path, draft, "bf16")
    for row in rows:
        emitted = list(accumulate((length + 1 for length in row.whole), initial=1))[1:]
        prompts = [{"prompt": row.prompt, "n_predict": budget} for budget in emitted]
        answers = ask_engine(target, file, prompts, 0)
        assert [answer["timings"].get("draft_n_accepted", 0) for answer in answers] == list(accumulate(row.whole))
