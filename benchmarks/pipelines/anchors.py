"""The detector's anchors and strides, which decoding needs, without importing PyTorch."""

from __future__ import annotations

__all__ = ["ANCHORS", "CLASSES", "STRIDES"]

CLASSES = 8
STRIDES = (8, 16, 32)
ANCHORS = (
    ((12, 16), (19, 36), (40, 28)),
    ((36, 75), (76, 55), (72, 146)),
    ((142, 110), (192, 243), (459, 401)),
)
"""Width and height in pixels of the input, of each head's three anchors."""
