"""A workshop of files to be patched."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import v2_config
from check.faults import NAME, Workshop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A DFlash 2 draft, and tools to break it."""
    return Workshop.open(tmp_path_factory.mktemp("patching"), v2_config())


@pytest.fixture
def file(shop: Workshop, tmp_path: Path) -> Path:
    """A good file in a folder of its own."""
    path = tmp_path / "in" / NAME
    path.parent.mkdir()
    path.write_bytes((shop.root / NAME).read_bytes())
    return path
