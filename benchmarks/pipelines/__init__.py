"""Four real pipelines, measured: video synopsis, intrusion detection, face recognition, detection.

The applications of table 5 of the LDWP and IAWP paper, and a YOLO-style detector, written with
``hrm.pipelines``. The frames are generated (with their truth) or read from the user's files; the
CPU versions use OpenCV and numpy on one thread, the GPU versions PyTorch. Details: README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["PIPELINES"]

PIPELINES: Mapping[str, str] = MappingProxyType(
    {
        "video-synopsis": "benchmarks.pipelines.synopsis:pipeline",
        "intrusion-detection": "benchmarks.pipelines.intrusion:pipeline",
        "face-recognition": "benchmarks.pipelines.faces:pipeline",
        "object-detection": "benchmarks.pipelines.detection:pipeline",
    }
)
"""Name to reference, as for ``hrm pipeline run``."""
