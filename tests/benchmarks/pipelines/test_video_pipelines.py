"""Synopsis and intrusion detection against the truth, and their GPU versions against the CPU's."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from benchmarks.pipelines import background, intrusion, scale_space, synopsis, torch_video, tubes
from benchmarks.pipelines.background import Foreground
from benchmarks.pipelines.frames import Track, Video, truth
from benchmarks.pipelines.intrusion import Path
from benchmarks.pipelines.tubes import Tube, overlap


@pytest.fixture(scope="module")
def found(moving: Foreground) -> tubes.Tubes:
    return tubes.extract(moving)


def _bits(masks: np.ndarray) -> np.ndarray:
    return np.unpackbits(masks)


def _shared_frames(track: Track, tube: Tube) -> tuple[float, int]:
    """Mean overlap of a track and a tube, and over how many frames."""
    first, last = max(track.start, tube.start), min(track.end, tube.start + len(tube.boxes))
    if last <= first:
        return 0.0, 0
    one = track.boxes[first - track.start : last - track.start]
    other = tube.boxes[first - tube.start : last - tube.start]
    return float(overlap(one, other).diagonal().mean()), last - first


def test_mog2_in_torch_is_opencvs(clip: Video, marked: Foreground) -> None:
    own = torch_video.model_background(clip)
    assert 0.005 < _bits(marked.masks).mean() < 0.2
    assert (_bits(own.masks) != _bits(marked.masks)).mean() < 1e-3
    assert np.abs(own.background.astype(int) - marked.background).max() <= 1


def test_frame_differencing_agrees_on_both_devices(marked: Foreground, moving: Foreground) -> None:
    own = torch_video.difference(marked)
    assert _bits(moving.masks).any()
    assert (_bits(own.masks) != _bits(moving.masks)).mean() < 1e-3


def test_the_masks_cover_the_objects_and_little_else(clip: Video, moving: Foreground) -> None:
    there = np.zeros((clip.count, clip.height, clip.width), bool)
    for track in truth(clip):
        for offset, box in enumerate(track.boxes):
            x0, y0, x1, y1 = np.round(box).astype(int)
            there[track.start + offset, y0:y1, x0:x1] = True
    masks = background.unpack(moving.masks, moving.width).astype(bool)[20:]
    there = there[20:]
    assert (masks & there).sum() / there.sum() > 0.8
    assert (masks & ~there).sum() / masks.sum() < 0.15


def test_every_track_has_its_tube(clip: Video, found: tubes.Tubes) -> None:
    for track in truth(clip):
        if len(track.boxes) >= 20:
            best = max(_shared_frames(track, tube) for tube in found.tubes)
            assert best[0] > 0.7 and best[1] > 0.6 * len(track.boxes), track.identity
    assert len(found.tubes) <= 2 * len(truth(clip))


def test_components_on_the_gpu_are_opencvs_for_any_shape(moving: Foreground) -> None:
    rng = np.random.default_rng(0)
    noise = (cv2.GaussianBlur(rng.random((40, 64)), (0, 0), 1.2) > 0.52).astype(np.uint8)
    spiral = np.zeros((40, 64), np.uint8)
    for inset in range(0, 18, 4):
        cv2.rectangle(spiral, (inset, inset), (63 - inset, 39 - inset), 1)
        spiral[inset + 1, inset] = 0
    empty = np.zeros_like(noise)
    masks = np.stack([noise, spiral, empty])
    own = torch_video.components(np.packbits(masks, axis=-1), 64)
    for one, mask in zip(own, masks, strict=True):
        assert np.array_equal(one, tubes.components(mask))
    assert len(own[0]) > 3 and len(own[2]) == 0
    gpu = tubes.extract_gpu(moving)
    cpu = tubes.extract(moving)
    assert len(gpu.tubes) == len(cpu.tubes) > 0
    for here, there in zip(gpu.tubes, cpu.tubes, strict=True):
        assert here.start == there.start and np.array_equal(here.boxes, there.boxes)


def test_optimisation_keeps_apart_what_would_collide(found: tubes.Tubes) -> None:
    box = np.tile(np.array([10, 10, 30, 30], np.float32), (20, 1))
    same = tubes.Tubes(found.found, tuple(Tube(100 * k, box) for k in range(3)))
    assert tubes.collisions(same.tubes, np.zeros(3, np.int64)) == 3 * 20 * 400
    lasting = np.tile(np.array([100, 100, 120, 120], np.float32), (60, 1))
    without_overlap = tubes.Tubes(found.found, (*same.tubes, Tube(0, lasting)))
    arranged = tubes.arrange(without_overlap)
    assert tubes.collisions(without_overlap.tubes, arranged.starts) == 0
    assert arranged.length < 120
    assert np.array_equal(arranged.starts, tubes.arrange(without_overlap).starts)


def test_the_synopsis_shows_every_tube_at_its_new_time(found: tubes.Tubes) -> None:
    arranged = tubes.arrange(found)
    short = synopsis.stitch(arranged)
    assert 0 < len(short.frames) < short.source_frames
    scene = found.found.background.astype(int)
    for tube, start in zip(found.tubes, arranged.starts, strict=True):
        middle = len(tube.boxes) // 2
        x0, y0, x1, y1 = tube.boxes[middle].astype(int)
        where = np.s_[y0 + 4 : y1 - 4, x0 + 4 : x1 - 4]
        assert np.abs(short.frames[start + middle][where].astype(int) - scene[where]).mean() > 20


def test_no_motion_gives_an_empty_synopsis(moving: Foreground) -> None:
    still = Foreground(moving.video, moving.width, np.zeros_like(moving.masks), moving.background)
    short = synopsis.stitch(tubes.arrange(tubes.extract(still)))
    assert len(short.frames) == 0 and short.tubes == ()
    paths = intrusion.follow(
        scale_space.find_blobs(scale_space.differences(scale_space.make_pyramid(still)))
    )
    assert paths.paths == ()


def test_extrema_are_at_planted_blobs() -> None:
    rows, columns = np.mgrid[0:120, 0:160]
    planted = [(30, 40, 3.0), (80, 100, 5.5), (60, 130, 4.0)]
    image = sum(np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * s**2)) for y, x, s in planted)
    levels = scale_space.gaussians(np.asarray(image, np.float32)[None])
    clip = Video(size_mb=1)
    pyramid = scale_space.Pyramid(clip, tuple(one.astype(np.float16) for one in levels))
    blobs = scale_space.find_blobs(scale_space.differences(pyramid))
    for y, x, s in planted:
        # Sizes and places are in pixels of the frame, twice those of the base image.
        near = np.hypot(blobs.found[:, 1] - 2 * x, blobs.found[:, 2] - 2 * y) <= 6
        assert near.any()
        best = blobs.found[near][blobs.found[near][:, 4].argmax()]
        assert 0.5 < best[3] / (2 * s) < 2
    strongest = blobs.found[:3, 1:3] / 2
    for x, y in strongest:
        assert min(np.hypot(x - b, y - a) for a, b, _ in planted) < 4


def test_scale_space_agrees_on_both_devices(moving: Foreground) -> None:
    cpu, gpu = scale_space.make_pyramid(moving), scale_space.make_pyramid_gpu(moving)
    for one, other in zip(cpu.levels, gpu.levels, strict=True):
        assert one.shape == other.shape and float(one.max()) > 0.05
        assert np.abs(one.astype(np.float32) - other).max() < 2e-3
    dogs, own = scale_space.differences(cpu), scale_space.differences_gpu(cpu)
    for one, other in zip(dogs.levels, own.levels, strict=True):
        assert np.abs(one.astype(np.float32) - other).max() < 1e-3
    assert len(scale_space.find_blobs(dogs).found) > 10
    assert np.array_equal(
        scale_space.find_blobs(dogs).found, scale_space.find_blobs_gpu(dogs).found
    )


def _enters(track: Track, clip: Video) -> Path:
    centres = (track.boxes[:, :2] + track.boxes[:, 2:]) / 2
    frames = np.arange(track.start, track.end, dtype=np.float32)[:, None]
    points = np.concatenate([frames, centres], 1)
    zone = intrusion.zone_of(clip.width, clip.height)
    return Path(track.identity, points, intrusion._entered(points, zone))


def test_the_intruders_are_found_when_they_enter_and_nothing_else() -> None:
    clip = Video(size_mb=90, seed=2)
    result = intrusion.pipeline.run_here(clip)
    expected = [_enters(track, clip) for track in truth(clip) if len(track.boxes) > 15]
    truly = [one.entered for one in expected if one.entered is not None]
    assert len(truly) >= 3
    seen = [one.entered for one in result.intruders]
    for frame in truly:
        assert any(frame is not None and abs(frame - one) <= 8 for one in seen), frame
    assert len(seen) <= len(truly) + 1


def test_both_pipelines_run_from_text_and_their_results_travel(clip: Video) -> None:
    short = synopsis.pipeline.run_here("synthetic:mb=12,seed=3")
    assert short.summary()["source_frames"] == 52
    spec = synopsis.pipeline.spec("benchmarks.pipelines.synopsis:pipeline")
    assert [one.name for one in spec.subtasks] == [
        "gmm-background", "frame-differencing", "tube-extraction", "tube-optimisation", "stitching",
    ]  # fmt: skip
