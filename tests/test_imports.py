"""What a process loads: none has what only others need."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["hrm.agent.daemon", "hrm.spark.appmaster", "hrm.pipelines.client.client"]
)
def test_one_that_only_sends_messages_loads_nothing_that_schedules(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "deciders = ('hrm.core.scheduling.', 'hrm.core.master.')\n"
        "print([m for m in sys.modules if m.startswith(deciders)])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
