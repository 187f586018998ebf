"""A workshop of files to be patched."""

from __future__ import annotations

import pytest
from builders import v2_config
from check.faults import Workshop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A DFlash 2 draft, and tools to break it."""
    return Workshop.open(tmp_path_factory.mktemp("patching"), v2_config())
