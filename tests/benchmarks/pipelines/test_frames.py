"""Clips: deterministic, of the requested size, true to their tracks; and the user's own videos."""

from __future__ import annotations

import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.pipelines import frames
from benchmarks.pipelines.frames import MB, Video, truth, video
from hrm.errors import InvalidConfig, NotFound


def test_a_clip_has_the_size_that_was_asked_for_and_the_truth_is_in_the_pixels(clip: Video) -> None:
    pixels = clip.frames()
    assert 0 <= clip.size_mb * MB - pixels.nbytes < clip.frame_bytes
    empty = pixels[: frames.EMPTY_FRAMES].astype(float).mean(0)
    for track in truth(clip):
        middle = len(track.boxes) // 2
        x0, y0, x1, y1 = track.boxes[middle].astype(int)
        now = pixels[track.start + middle].astype(float)
        inside = np.abs(now - empty)[y0 + 4 : y1 - 4, x0 + 4 : x1 - 4].mean()
        assert inside > 25, "an object stands out, by far more than noise and light"


def test_one_seed_gives_one_clip_and_another_seed_another(tmp_path: Path) -> None:
    one, again, other = (list(frames._draw(Video(size_mb=1, seed=seed))) for seed in (5, 5, 6))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_what_travels_between_steps_is_small(clip: Video) -> None:
    assert len(pickle.dumps(clip)) < 500


def test_a_users_video_and_a_folder_of_images_are_read(tmp_path: Path) -> None:
    pictures = list(frames._draw(Video(size_mb=2, seed=1)))
    folder = tmp_path / "images"
    folder.mkdir()
    for number, picture in enumerate(pictures):
        cv2.imwrite(str(folder / f"{number:03d}.png"), picture)
    assert np.array_equal(video(str(folder)).frames(), pictures)
    film = tmp_path / "film.avi"
    writer = cv2.VideoWriter(
        str(film), cv2.VideoWriter.fourcc(*"MJPG"), 25, (frames.WIDTH, frames.HEIGHT)
    )
    for picture in pictures:
        writer.write(picture)
    writer.release()
    read = video(film).frames()
    assert read.shape == (len(pictures), frames.HEIGHT, frames.WIDTH, 3)
    assert np.abs(read.astype(float) - np.asarray(pictures, float)).mean() < 6


@pytest.mark.parametrize("value", [3, None, "synthetic:mb=x", "synthetic:size=3", "synthetic:mb=0"])
def test_what_is_no_video_is_refused(value: object) -> None:
    with pytest.raises(InvalidConfig):
        video(value)


def test_a_missing_a_broken_and_a_short_video_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no video at"):
        video(tmp_path / "none.mp4").frames()
    broken = tmp_path / "images"
    broken.mkdir()
    with pytest.raises(InvalidConfig, match="fewer than three frames"):
        video(broken).frames()
    (broken / "0.png").write_bytes(b"no picture")
    with pytest.raises(InvalidConfig, match=r"0\.png is no image"):
        video(broken).frames()


def test_text_names_a_synthetic_clip() -> None:
    assert video("synthetic:mb=12,seed=7") == Video(size_mb=12, seed=7)
    assert video("synthetic") == Video()


def test_the_cache_drops_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(frames, "CACHE_BYTES_MAX", 5 * MB)
    held = Video(size_mb=2, seed=0).frames()
    for seed in range(1, 5):
        Video(size_mb=2, seed=seed).frames()
    left = {one.name.split("-")[1] for one in (tmp_path / "pipelines").glob("*.npy")}
    assert "4" in left and "0" not in left
    assert held.mean() > 0, "who has a dropped file open keeps it"
