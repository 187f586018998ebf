"""A file to be patched."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults import NAME, Workshop


@pytest.fixture
def file(shop: Workshop, tmp_path: Path) -> Path:
    """A good file in a folder of its own."""
    path = tmp_path / "in" / NAME
    path.parent.mkdir()
    path.write_bytes((shop.root / NAME).read_bytes())
    return path
