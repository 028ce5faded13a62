"""Work of a GPU version, counted while it runs on any device, and an estimate of its time.

``Counter`` sees every operation that PyTorch dispatches: a kernel launch, the bytes that it reads
and writes, its floating-point operations, the bytes over the bus, the most memory alive. ``Card``
turns counts into time, operation by operation (roofline: Williams, Waterman and Patterson, CACM
2009): an operation takes the larger of the times for its arithmetic and for its bytes, at the
share of the data sheet's peak that such kernels reach, but no less than a launch. Copies are added,
because the steps here wait for them.

That is an estimate for a card that is not available: caches, occupancy and clocks are left out. It
suffices to compare steps, not to predict times within a factor of one and a half.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from benchmarks.pipelines import devices

__all__ = ["CARDS", "Card", "Counter", "Operation", "Work", "counted"]

LAUNCH_S = 5e-6
"""From one launch to the next, by PyTorch in eager mode; nothing runs in less."""
WAIT_S = 15e-6
"""The cost of a copy or a query of the device besides its bytes."""
BUS_BYTES_PER_S = 6e9
"""PCIe 3 x16 from pageable memory."""
COMPUTE_SHARE = 0.5
"""Of the peak that convolutions and matrix products reach; elementwise arithmetic never does."""
BANDWIDTH_SHARE = 0.7
CONTEXT_MIB = 300.0
"""Memory of the CUDA context and the libraries, in addition to the tensors."""
_FREE = {
    "view", "_unsafe_view", "expand", "permute", "transpose", "t", "slice", "select", "unsqueeze",
    "squeeze", "detach", "alias", "unbind", "split", "unfold", "as_strided", "_reshape_alias",
    "empty", "empty_strided", "empty_like", "is_same_size", "lift_fresh",
}  # fmt: skip
_ASKS = {"_local_scalar_dense", "nonzero", "equal", "_unique2", "bincount", "is_nonzero"}
"""The host waits for the results of these."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel: bytes read and written, floating-point operations; ``dense``: a product."""

    read: float
    written: float
    flops: float
    dense: bool
    asks: bool = False


@dataclass(slots=True)
class Work:
    """All of a step. ``memory_bytes``: the most that was alive at once."""

    operations: list[Operation] = field(default_factory=list)
    copied: float = 0.0
    copies: int = 0
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """``seconds`` alone on a card, and shares of its peaks over that time, each 0..1."""

    seconds: float
    features: dict[str, float]


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its data sheet, for one device of it."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_mib: int

    def seconds(self, one: Operation) -> float:
        """Roofline of one operation, with the launch as the floor."""
        share = COMPUTE_SHARE if one.dense else 1.0
        arithmetic = one.flops / (share * self.flops_per_s)
        memory = (one.read + one.written) / (BANDWIDTH_SHARE * self.bytes_per_s)
        return max(LAUNCH_S, arithmetic, memory) + (WAIT_S if one.asks else 0.0)

    def estimate(self, work: Work) -> Estimate:
        """Time of a step, and its load: table 2's metrics as shares of the peaks.

        ``sm``: arithmetic at the reachable peak, or busy with bytes (an SM that waits for memory
        has its warps resident all the same); ``dram``, ``load``, ``store``: bytes by peak
        bandwidth; ``l1`` and ``l2``: the same bytes by the caches' bandwidth, some 5 and 3 times
        as much as the memory's; ``tex``: reads of convolutions and interpolations, by L1's.
        """
        kernels = sum(self.seconds(one) for one in work.operations)
        total = kernels + work.copies * WAIT_S + work.copied / BUS_BYTES_PER_S
        if total <= 0:
            return Estimate(0.0, dict.fromkeys(("sm", "l1", "l2", "tex", "dram", "load", "store"),
                                               0.0))  # fmt: skip
        read = sum(one.read for one in work.operations)
        written = sum(one.written for one in work.operations)
        busy = sum(
            max(one.flops / (COMPUTE_SHARE * self.flops_per_s if one.dense else self.flops_per_s),
                (one.read + one.written) / (BANDWIDTH_SHARE * self.bytes_per_s))
            for one in work.operations
        )  # fmt: skip
        sampled = sum(one.read for one in work.operations if one.dense)
        peak = self.bytes_per_s * total
        shares = {
            "sm": busy / total,
            "l1": (read + written) / (5 * peak),
            "l2": (read + written) / (3 * peak),
            "tex": sampled / (5 * peak),
            "dram": (read + written) / peak,
            "load": read / peak,
            "store": written / peak,
        }
        return Estimate(total, {key: round(min(1.0, value), 5) for key, value in shares.items()})


CARDS = (
    Card("Tesla P4", 5.5e12, 192e9, 8_192),
    Card("Tesla K80", 4.37e12, 240e9, 12_288),
)
"""Single precision and memory of one device: P4 75 W; K80 with boost clocks, half a board."""


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts all operations inside its ``with``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()
        self._alive: dict[int, int] = {}
        self._bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        outputs = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]
        for one in outputs:
            self._hold(one)
        inputs = [one for one in tree_flatten(args)[0] if isinstance(one, torch.Tensor)]
        storages = {one.untyped_storage().data_ptr() for one in inputs}
        moved = any(one.untyped_storage().data_ptr() not in storages for one in outputs)
        if name not in _FREE and (moved or name.endswith("_") or name in _ASKS):
            written = sum(_size(one) for one in outputs)
            flops, dense = _flops(name, inputs, outputs)
            read = sum(_size(one) for one in inputs)
            self.work.operations.append(Operation(read, written, flops, dense, asks=name in _ASKS))
        return result

    def _hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        size = storage.nbytes()
        self._alive[key] = size
        self._bytes += size
        self.work.memory_bytes = max(self.work.memory_bytes, self._bytes)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self._bytes -= self._alive.pop(key, 0)

    def copied(self, size: int) -> None:
        """Called by ``devices`` for a copy over the bus."""
        self.work.copied += size
        self.work.copies += 1


def _size(tensor: torch.Tensor) -> float:
    """Bytes that are read: what was only expanded is read once."""
    return float(min(tensor.nelement() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def _flops(
    name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> tuple[float, bool]:
    """Multiplications and additions, and whether it is a product that runs near the peak."""
    if not outputs:
        return 0.0, False
    numbers = float(outputs[0].nelement())
    if name in {"convolution", "mkldnn_convolution", "_convolution", "cudnn_convolution"}:
        weight = inputs[1]
        return 2 * numbers * weight.nelement() / weight.shape[0], True
    if name in {"mm", "bmm", "addmm", "baddbmm"}:
        return 2 * numbers * inputs[-2].shape[-1], True
    if name in {"grid_sampler_2d", "_upsample_bilinear2d_aa", "upsample_bilinear2d"}:
        return 8 * numbers, True
    if name in {"max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d"}:
        return 9 * numbers, False
    if name in {"_cdist_forward"}:
        return 3 * numbers * inputs[0].shape[-1], False
    if name == "sort":
        return numbers * math.log2(max(2, outputs[0].shape[-1])), False
    return max(numbers, float(max((one.nelement() for one in inputs), default=0))), False


@contextmanager
def counted() -> Iterator[Work]:
    """Count what is done inside; the ``Work`` grows while it runs."""
    counter = Counter()
    devices.watch(counter.copied)
    try:
        with counter:
            yield counter.work
    finally:
        devices.watch(None)
