"""How a machine is divided among the nodes of an embedded cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.cli import node_sizes
from hrm.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "mib"),
    [("4g", 4096), ("1536m", 1536), ("4096", 4096), ("1.5G", 1536), ("2GiB", 2048), ("1t", 2**20)],
)
def test_memory_is_written_as_for_spark(text: str, mib: int) -> None:
    assert node_sizes.parse_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "lots", "-4g", "4x", "4 g b", "100m", "1e9", "nan", "9" * 40])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--memory"):
        node_sizes.parse_memory_mib(text)


def test_an_equal_share_leaves_memory_to_drivers() -> None:
    size = node_sizes.node_size(2, None, None, has_cores=8, has_memory_mib=16_384)
    assert (size.cores, size.memory_mib) == (4, 6144)
    assert size.notes == ()


def test_more_than_the_machine_has_is_given_and_reported() -> None:
    size = node_sizes.node_size(2, 4, "16g", has_cores=4, has_memory_mib=16_384)
    assert (size.cores, size.memory_mib) == (4, 16_384)
    assert len(size.notes) == 2


@given(
    nodes=st.integers(1, 64),
    has_cores=st.integers(1, 512),
    has_memory_mib=st.integers(256, 4 * 2**20),
)
def test_every_node_can_run_something(nodes: int, has_cores: int, has_memory_mib: int) -> None:
    size = node_sizes.node_size(
        nodes, None, None, has_cores=has_cores, has_memory_mib=has_memory_mib
    )
    assert size.cores >= 1
    assert size.memory_mib >= node_sizes.MEMORY_MIB_MIN
    assert size.notes or nodes * size.cores <= has_cores


def test_this_machine_has_something() -> None:
    assert node_sizes.machine_cores() >= 1
    assert node_sizes.machine_memory_mib() > 256
