"""A master that takes files of up to 1 MiB, for tests that need it with no other settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.master.test_services import Running, running


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, file_mib_max=1) as subject:
        yield subject
