"""Video synopsis, five subtasks: everything that moved, shown concurrently in a short video.

GMM background -> frame differencing -> tube extraction -> tube optimisation -> stitching. As in
table 5, the last two have a CPU version only; tube extraction has both.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.pipelines import devices, tubes
from benchmarks.pipelines.background import add_steps, unpack
from benchmarks.pipelines.tubes import Arrangement, Tube
from hrm.pipelines.client.definition import Pipeline

__all__ = ["Synopsis", "pipeline", "stitch"]

FEATHER = 1.2
"""Standard deviation of the soft edge around what is pasted, pixels."""
MARGIN = 4


@dataclass(frozen=True, slots=True, eq=False)
class Synopsis:
    """``frames``: (length, height, width, 3). ``starts``: where each tube begins in it."""

    frames: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    tubes: tuple[Tube, ...]
    source_frames: int

    def summary(self) -> dict[str, object]:
        return {
            "source_frames": self.source_frames,
            "frames": len(self.frames),
            "tubes": len(self.tubes),
        }


def stitch(arrangement: Arrangement) -> Synopsis:
    """Paste every tube onto the scene at its new time, with soft edges."""
    devices.one_thread()
    found = arrangement.tubes.found
    source = found.video.frames()
    shape = (arrangement.length, *found.background.shape)
    out = np.broadcast_to(found.background, shape).copy()
    for tube, start in zip(arrangement.tubes.tubes, arrangement.starts, strict=True):
        for offset, box in enumerate(tube.boxes):
            frame = tube.start + offset
            mask = unpack(found.masks[frame], found.width)
            _paste(out[int(start) + offset], source[frame], mask, box)
    return Synopsis(out, arrangement.starts, arrangement.tubes.tubes, len(source))


def _paste(
    onto: npt.NDArray[np.uint8],
    frame: npt.NDArray[np.uint8],
    mask: npt.NDArray[np.uint8],
    box: npt.NDArray[np.float32],
) -> None:
    left, top = (max(0, int(value) - MARGIN) for value in box[:2])
    right, bottom = (int(np.ceil(value)) + MARGIN for value in box[2:])
    where = np.s_[top:bottom, left:right]
    soft = cv2.GaussianBlur(mask[where].astype(np.float32), (0, 0), FEATHER)[..., None]
    onto[where] = (onto[where] * (1 - soft) + frame[where] * soft + 0.5).astype(np.uint8)


pipeline = Pipeline("video-synopsis")
_, _moving = add_steps(pipeline)
_tubes = pipeline.subtask("tube-extraction", kind="tube-extraction", after=_moving)(
    tubes.extract
).gpu(tubes.extract_gpu)
_arranged = pipeline.subtask("tube-optimisation", kind="tube-optimisation", after=_tubes)(
    tubes.arrange
)
_stitched = pipeline.subtask("stitching", kind="stitching", after=_arranged)(stitch)
