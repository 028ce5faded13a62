"""Tables of the two-level fairness paper, as printed; rows are tenants, columns platforms.

Source: Hwang, Kim, Choi, IEEE Trans. Services Computing, 2018, tables 3 and 4.
"""

from __future__ import annotations

import numpy as np

from hrm.core.vocabulary.columns import Floats

__all__ = ["EGOCENTRIC", "MEAN_PERCENT", "PER_HOUR", "PLATFORMS", "RECIPROCAL", "TENANTS"]

TENANTS = ("AutoDock", "Blast", "CacheBench", "Montage", "ThreeKaonOmega")
PLATFORMS = ("gene", "cheetah", "darth", "lcloud")

PER_HOUR: Floats = np.array(
    [
        [7.49, 14.75, 10.37, 12.24],
        [56.28, 94.97, 77.66, 93.58],
        [9.57, 10.71, 10.06, 10.15],
        [11.64, 23.88, 25.28, 33.76],
        [17.98, 50.69, 35.62, 41.44],
    ]
)
"""Tasks per core-hour, table 3."""

EGOCENTRIC: Floats = np.array(
    [
        [0.614, 1.532, 0.978, 1.214],
        [0.640, 1.308, 1.009, 1.284],
        [0.929, 1.080, 0.994, 1.006],
        [0.431, 1.234, 1.326, 1.883],
        [0.431, 1.822, 1.181, 1.428],
    ]
)
RECIPROCAL: Floats = np.array(
    [
        [0.966, 1.169, 0.918, 0.974],
        [1.009, 0.997, 0.955, 1.042],
        [1.473, 0.854, 0.988, 0.847],
        [0.684, 0.892, 1.203, 1.484],
        [0.678, 1.341, 1.060, 1.102],
    ]
)

MEAN_PERCENT: Floats = np.array(
    [
        [5.57, 9.86, 10.04, 8.66],
        [0.69, 33.76, 7.47, 12.01],
        [12.65, 0.27, 3.72, 0.37],
        [7.99, 70.78, 9.84, 12.73],
        [4.70, 6.22, 6.38, 4.34],
    ]
)
"""By how much tasks take longer on a full node than alone, a mean over combinations; table 4."""
