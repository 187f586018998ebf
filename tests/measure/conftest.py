"""The trained draft in three types, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from executor_fixture import converted

from measure.drafts import KINDS


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The DFlash 2 draft by type."""
    folder = tmp_path_factory.mktemp("measure")
    return {kind: converted(folder, "draft", kind) for kind in KINDS}
