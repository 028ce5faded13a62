"""Faces: the cascade and the batch detector find them, one person is close, another is far."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.pipelines import faces, portraits
from benchmarks.pipelines.faces import Crops
from benchmarks.pipelines.portraits import Album, album
from benchmarks.pipelines.tubes import overlap
from hrm.errors import InvalidConfig, NotFound


def test_both_detectors_find_the_faces(photos: Album, crops: Crops) -> None:
    true = portraits.truth(photos)
    assert len(crops.photo) == len(true), "one face on each photograph"
    for photo, box in zip(crops.photo, crops.boxes, strict=True):
        wanted = np.array([true[photo].box], np.float32)
        assert overlap(box[None], wanted)[0, 0] > 0.55, photo


def test_the_same_face_is_close_and_another_is_far(photos: Album, crops: Crops) -> None:
    codes = faces.face_distance(faces.face_encodings(crops))
    assert codes.distance is not None
    person = np.array([one.person for one in portraits.truth(photos)])
    same = person[codes.unknown_photo][:, None] == person[codes.known_photo][None]
    assert same.any(1).all() and (~same).any()
    assert np.median(codes.distance[same]) < 0.75 * np.median(codes.distance[~same])
    nearest = codes.known_photo[codes.distance.argmin(1)]
    assert (person[nearest] == person[codes.unknown_photo]).mean() >= 0.85
    matches = faces.compare(codes)
    assert np.array_equal(matches.same, codes.distance <= faces.TOLERANCE)


def test_the_gpu_versions_agree(crops: Crops) -> None:
    own = faces.face_landmarks_gpu(crops)
    assert own.landmarks is not None and crops.landmarks is not None
    assert np.abs(own.landmarks - crops.landmarks).max() < 0.01
    cpu, gpu = faces.face_encodings(crops), faces.face_encodings_gpu(crops)
    assert np.abs(cpu.known - gpu.known).max() < 0.02
    assert np.allclose(np.linalg.norm(gpu.unknown, axis=1), 1, atol=1e-4)
    here, there = faces.face_distance(cpu), faces.face_distance_gpu(cpu)
    assert here.distance is not None and there.distance is not None
    assert np.abs(here.distance - there.distance).max() < 1e-4
    one, other = faces.compare(here), faces.compare_gpu(here)
    assert np.array_equal(one.same, other.same) and np.array_equal(one.best, other.best)


def test_landmarks_are_eyes_nose_and_mouth(photos: Album, crops: Crops) -> None:
    assert crops.landmarks is not None
    true = portraits.truth(photos)
    for photo, box, marks in zip(crops.photo, crops.boxes, crops.landmarks, strict=True):
        face = portraits.identity(true[photo].person, photos.seed)
        side = (true[photo].box[2] - true[photo].box[0]) / (portraits.BOX[2] - portraits.BOX[0])
        corner = np.array(true[photo].box[:2]) - np.array(portraits.BOX[:2]) * side
        eyes = [
            corner + side * np.array([0.5 + k * face["eye_dx"], face["eye_y"]]) for k in (-1, 1)
        ]
        scale = (box[2] - box[0]) / faces.CROP
        for mark, eye in zip(marks[:2], eyes, strict=True):
            assert np.hypot(*(box[:2] + mark * scale - eye)) < 0.12 * side


def test_the_pipeline_has_the_seven_steps_and_their_devices() -> None:
    spec = faces.pipeline.spec("benchmarks.pipelines.faces:pipeline")
    devices = {one.name: {device.value for device in one.devices} for one in spec.subtasks}
    assert list(devices) == [
        "load-image-file", "face-locations", "batch-face-locations", "face-landmarks",
        "face-encodings", "face-distance", "compare-faces",
    ]  # fmt: skip
    assert devices["load-image-file"] == devices["face-locations"] == {"cpu"}
    assert devices["batch-face-locations"] == {"gpu"}


def test_a_folder_of_the_users_is_read_whatever_its_sizes(tmp_path: Path) -> None:
    source = Album(size_mb=8, seed=1)
    for number in range(source.count):
        picture = portraits.photograph(source, number)
        size = (320, 240) if number == 1 else (800, 600) if number == 2 else (640, 480)
        cv2.imwrite(str(tmp_path / f"{number}.png"), cv2.resize(picture, size))
    result = faces.pipeline.run_here(str(tmp_path))
    assert len(result.asked) == 2 and len(result.gallery) >= 4


def test_without_any_face_no_person_is_recognised(tmp_path: Path) -> None:
    for number in range(4):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((480, 640, 3), 90, np.uint8))
    result = faces.pipeline.run_here(str(tmp_path))
    assert result.summary() == {"asked": 0, "gallery": 0, "recognised": 0}


def test_bad_albums_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no folder"):
        faces.load_image_files(str(tmp_path / "none"))
    with pytest.raises(InvalidConfig, match="fewer than two images"):
        faces.load_image_files(str(tmp_path))
    for number in range(2):
        (tmp_path / f"{number}.jpg").write_bytes(b"no picture")
    with pytest.raises(InvalidConfig, match=r"0\.jpg is no image"):
        faces.load_image_files(str(tmp_path))
    with pytest.raises(InvalidConfig, match="no album"):
        album(3)
