"""OpenCV's MOG2 for every pixel at once, in PyTorch.

Adaptive Gaussian mixtures after Zivkovic (ICPR 2004; with van der Heijden, Pattern Recognition
Letters 2006): each pixel keeps up to ``MODES`` Gaussians by falling weight; a sample moves the
first that it fits, else it starts a new one; modes too light vanish. A pixel is background when it
fits a mode among those that make up ``BACKGROUND`` of the weight. The steps, their order and the
constants are those of ``cv2.BackgroundSubtractorMOG2`` without shadows, so that both agree up to
the rounding of float32. Frames follow each other; pixels are the parallel dimension.
"""

from __future__ import annotations

import torch

__all__ = ["BACKGROUND", "HISTORY", "MODES", "THRESHOLD", "Mixture"]

MODES = 3
HISTORY = 200
THRESHOLD = 16.0
"""Squared distance, in variances, up to which a pixel is background."""
BACKGROUND = 0.9
FIT = 9.0
VARIANCE = 15.0
VARIANCE_MIN, VARIANCE_MAX = 4.0, 75.0
PRUNING = 0.05


class Mixture:
    """The model of ``pixels`` pixels of three channels.

    ``weight`` and ``variance``: (MODES, pixels), ``mean``: (MODES, 3, pixels), by falling weight;
    ``used``: (pixels,) modes in use.
    """

    def __init__(self, pixels: int, device: torch.device) -> None:
        self.weight = torch.zeros((MODES, pixels), device=device)
        self.variance = torch.zeros((MODES, pixels), device=device)
        self.mean = torch.zeros((MODES, 3, pixels), device=device)
        self.used = torch.zeros(pixels, dtype=torch.int32, device=device)
        self.frames = 0

    def apply(self, sample: torch.Tensor) -> torch.Tensor:
        """Learn from ``sample`` (3, pixels) float32; true where it is foreground, (pixels,).

        OpenCV lets the mode that took the sample rise within its loop. No later mode depends on the
        order of the earlier ones, so here it rises once, at the end.
        """
        self.frames += 1
        rate = 1.0 / min(2 * self.frames, HISTORY)
        prune = -rate * PRUNING
        fits = torch.zeros_like(self.used, dtype=torch.bool)
        background = torch.zeros_like(fits)
        total = torch.zeros_like(self.weight[0])
        used = self.used
        moved = []
        for mode in range(MODES):
            alive = mode < used
            weight = (1 - rate) * self.weight[mode] + prune
            difference = self.mean[mode] - sample
            distance = (difference * difference).sum(0)
            variance = self.variance[mode]
            free = alive & ~fits
            background |= free & (total < BACKGROUND) & (distance < THRESHOLD * variance)
            takes = free & (distance < FIT * variance)
            weight = torch.where(takes, weight + rate, weight)
            step = torch.where(takes, rate / weight, 0.0)
            self.mean[mode] -= step * difference
            pulled = (variance + step * (distance - variance)).clamp(VARIANCE_MIN, VARIANCE_MAX)
            self.variance[mode] = torch.where(takes, pulled, variance)
            light = alive & (weight < -prune)
            weight = torch.where(light, 0.0, weight)
            used = used - light.to(torch.int32)
            self.weight[mode] = torch.where(alive, weight, self.weight[mode])
            total = total + torch.where(alive, weight, 0.0)
            fits = fits | takes
            moved.append(takes)
        self.weight *= torch.where(total > 1e-7, 1.0 / total, 0.0)
        self.used, begun = self._start(sample, ~fits, used, rate)
        self._rise([took | new for took, new in zip(moved, begun, strict=True)])
        return ~background

    def background(self) -> torch.Tensor:
        """(3, pixels): the mean of the modes that make up the background, by weight."""
        kept = torch.zeros_like(self.weight[0])
        colour = torch.zeros_like(self.mean[0])
        for mode in range(MODES):
            wanted = (mode < self.used) & (kept <= BACKGROUND)
            weight = torch.where(wanted, self.weight[mode], torch.zeros_like(kept))
            colour += weight * self.mean[mode]
            kept = kept + weight
        return colour / kept.clamp_min(1e-7)

    def _rise(self, moved: list[torch.Tensor]) -> None:
        """Let the mode that ``moved`` (MODES times (pixels,)) pass the lighter ones before it."""
        here = moved[-1]
        for upper in range(MODES - 1, 0, -1):
            passes = here & (self.weight[upper] >= self.weight[upper - 1])
            for values in (self.weight, self.variance, self.mean):
                low, high = values[upper], values[upper - 1]
                values[upper], values[upper - 1] = (
                    torch.where(passes, high, low),
                    torch.where(passes, low, high),
                )
            here = passes | moved[upper - 1]

    def _start(
        self, sample: torch.Tensor, new: torch.Tensor, used: torch.Tensor, rate: float
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """A mode for each pixel that fits none: the next free one, or in place of the lightest."""
        used = torch.where(new & (used < MODES), used + 1, used)
        place = used - 1
        only = new & (used == 1)
        begun = []
        for mode in range(MODES):
            here = new & (place == mode)
            lighter = new & (place > mode)
            weight = torch.where(lighter, self.weight[mode] * (1 - rate), self.weight[mode])
            self.weight[mode] = torch.where(here, torch.where(only, 1.0, rate), weight)
            self.variance[mode] = torch.where(here, VARIANCE, self.variance[mode])
            self.mean[mode] = torch.where(here, sample, self.mean[mode])
            begun.append(here)
        return used, begun
