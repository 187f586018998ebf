"""A workshop for each version of draft."""

from __future__ import annotations

import pytest
from builders import v1_config, v2_config

from check.faults import Workshop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A DFlash 2 draft, and tools to break it."""
    return Workshop.open(tmp_path_factory.mktemp("v2"), v2_config())


@pytest.fixture(scope="session")
def v1_shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A DFlash 1 draft."""
    return Workshop.open(tmp_path_factory.mktemp("v1"), v1_config())
