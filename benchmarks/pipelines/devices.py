"""The device of the GPU versions, and copies to it: the only module that depends on CUDA.

GPU versions call ``device()``. That is ``cuda:0`` where PyTorch finds one; else the CPU, which is
logged once, because a time taken then means nothing for a GPU. All transfers over the bus are by
``upload`` and ``download``, so that ``counting`` can count what a GPU would have had to copy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = ["Watcher", "device", "download", "gpu_name", "one_thread", "upload", "watch"]

Watcher = Callable[[int], None]
"""Called with the bytes of every copy between host and device."""

_LOG = logging.getLogger(__name__)
_watchers: list[Watcher] = []


def one_thread() -> None:
    """A CPU version may use only the one core that it is given."""
    cv2.setNumThreads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@cache
def device() -> torch.device:
    """``cuda:0`` where there is one, else the CPU, on one thread."""
    import torch

    if torch.cuda.is_available():
        # Convolutions in float32, as on a core: cuDNN's default on newer cards has 10 bits.
        torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda:0")
    torch.set_num_threads(1)
    _LOG.warning("no CUDA device: the GPU versions run on the CPU, their times are not a GPU's")
    return torch.device("cpu")


def gpu_name() -> str | None:
    """The name of the card, or None where there is none."""
    import torch

    return torch.cuda.get_device_name(0) if device().type == "cuda" else None


def watch(watcher: Watcher | None) -> None:
    """Notify ``watcher`` of every copy from now on; None: stop."""
    _watchers[:] = [] if watcher is None else [watcher]


def _report_copy(size: int) -> None:
    for watcher in _watchers:
        watcher(size)


def upload(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor on the device with the array's shape and type. The array itself is not touched."""
    import torch

    source = np.ascontiguousarray(array)
    if not source.flags.writeable:
        source = source.copy()
    _report_copy(source.nbytes)
    return torch.from_numpy(source).to(device())


def download(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor as an array on the host."""
    _report_copy(tensor.element_size() * tensor.nelement())
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return array
