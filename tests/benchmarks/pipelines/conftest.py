"""Small clips and albums, drawn once into a cache of this test run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cv2", reason="pip install 'hrm-spark[bench]'")
pytest.importorskip("torch", reason="pip install 'hrm-spark[bench]'")

from benchmarks.pipelines import background, faces, portraits
from benchmarks.pipelines.background import Foreground
from benchmarks.pipelines.faces import Crops
from benchmarks.pipelines.frames import Video
from benchmarks.pipelines.portraits import Album


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("frames")
        patch.setenv("HRM_BENCH_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def clip() -> Video:
    return Video(size_mb=40, seed=2)


@pytest.fixture(scope="session")
def marked(clip: Video) -> Foreground:
    return background.model_background(clip)


@pytest.fixture(scope="session")
def moving(marked: Foreground) -> Foreground:
    return background.difference(marked)


@pytest.fixture(scope="session")
def photos() -> Album:
    return portraits.Album(size_mb=24, seed=4)


@pytest.fixture(scope="session")
def crops(photos: Album) -> Crops:
    located = faces.face_locations(faces.load_image_files(photos))
    return faces.face_landmarks(faces.batch_face_locations(located))
