"""The detector: shapes, suppression against brute force, both devices, and files of weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.pipelines import detection, network
from benchmarks.pipelines.detection import Candidates
from benchmarks.pipelines.frames import Video
from benchmarks.pipelines.tubes import overlap
from hrm.errors import InvalidConfig, NotFound


@pytest.fixture(scope="module")
def boxed() -> detection.Letterboxed:
    whole = detection.letterbox(Video(size_mb=2, seed=1))
    return detection.Letterboxed(whole.pictures[:4], whole.scale, whole.offset)


def _brute_force(boxes: np.ndarray, scores: np.ndarray, kinds: np.ndarray) -> list[int]:
    """The definition, pair by pair."""
    kept: list[int] = []
    for one in range(len(boxes)):
        rivals = [k for k in kept if kinds[k] == kinds[one]]
        covered = any(
            overlap(boxes[k : k + 1], boxes[one : one + 1])[0, 0] > detection.OVERLAP_MAX
            for k in rivals
        )
        if scores[one] > 0 and not covered and len(kept) < detection.KEPT_MAX:
            kept.append(one)
    return kept


@pytest.mark.parametrize("seed", range(6))
def test_suppression_is_the_definitions_on_both_devices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 60, (3, 80, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(10, 60, (3, 80, 2))], 2).astype(np.float32)
    scores = -np.sort(-rng.uniform(0, 1, (3, 80)), axis=1).astype(np.float32)
    scores[:, 70:] = 0
    kinds = rng.integers(0, 3, (3, 80))
    found = Candidates(boxes, scores, kinds)
    cpu, gpu = detection.suppress(found), detection.suppress_gpu(found)
    for number in range(3):
        kept = _brute_force(boxes[number], scores[number], kinds[number])
        assert 3 < len(kept) < 70
        assert np.array_equal(cpu.frames[number][:, :4], boxes[number][kept])
        assert np.array_equal(gpu.frames[number], cpu.frames[number])


def test_letterbox_keeps_the_picture_and_agrees_on_both_devices() -> None:
    for width, height in ((320, 240), (480, 352)):
        clip = Video(size_mb=3, seed=1, width=width, height=height)
        cpu, gpu = detection.letterbox(clip), detection.letterbox_gpu(clip)
        assert cpu.pictures.shape[1] % 32 == 0 and cpu.pictures.shape[2] == detection.SIDE
        assert np.abs(cpu.pictures.astype(int) - gpu.pictures).max() <= 1
        assert (cpu.pictures[:, 0] == detection.GREY).all() or cpu.offset[1] == 0
    inner = detection.letterbox(Video(size_mb=3, seed=1)).pictures[:, 8:-8]
    assert np.array_equal(inner[..., ::-1], Video(size_mb=3, seed=1).frames())


def test_the_network_and_decoding_agree_and_stay_in_the_picture(
    boxed: detection.Letterboxed,
) -> None:
    outputs, own = detection.infer(boxed), detection.infer_gpu(boxed)
    shapes = [head.shape[1:] for head in outputs.heads]
    assert shapes == [(39, 32, 40), (39, 16, 20), (39, 8, 10)]
    for one, other in zip(outputs.heads, own.heads, strict=True):
        assert np.isfinite(one).all() and float(one.astype(np.float32).std()) > 0.1
        assert np.abs(one.astype(np.float32) - other).max() < 0.02
    cpu, gpu = detection.decode(outputs), detection.decode_gpu(outputs)
    assert np.abs(cpu.scores - gpu.scores).max() < 1e-6
    assert np.abs(cpu.boxes - gpu.boxes).max() < 1e-2
    centres = (cpu.boxes[..., :2] + cpu.boxes[..., 2:]) / 2
    assert (centres > -20).all() and (centres < 340).all()


def test_what_random_weights_return_depends_on_the_picture() -> None:
    per_picture = [
        detection.decode(detection.infer(detection.letterbox(f"synthetic:mb=2,seed={seed}")))
        for seed in (0, 1)
    ]
    assert np.abs(per_picture[0].scores - per_picture[1].scores).max() > 1e-3


def test_decoding_puts_a_box_where_the_heads_report() -> None:
    heads = [np.full((1, 39, *shape), -12, np.float16) for shape in ((32, 40), (16, 20), (8, 10))]
    cell = heads[1].reshape(3, 13, 16, 20)
    cell[2, :5, 7, 11] = 0
    cell[2, 4, 7, 11] = 12
    cell[2, 5 + 6, 7, 11] = 12
    found = detection.decode(detection.Outputs(tuple(heads), 0.5, (0, 8)))
    width, height = 72, 146
    centre = np.array([(11 + 0.5) * 16, (7 + 0.5) * 16])
    half = np.array([width, height]) / 2
    want = np.concatenate([centre - half, centre + half])
    assert np.allclose(found.boxes[0, 0], (want - [0, 8, 0, 8]) / 0.5, atol=0.1)
    assert found.classes[0, 0] == 6 and found.scores[0, 0] > 0.99
    assert found.scores[0, 1] == 0


def test_one_seed_gives_one_network() -> None:
    network.network.cache_clear()
    one = network.network(8).state_dict()
    network.network.cache_clear()
    other = network.network(8).state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)


def _safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    header, body = {}, b""
    kinds = {"float32": "F32", "int64": "I64"}
    for name, one in arrays.items():
        data = one.tobytes()
        header[name] = {
            "dtype": kinds[one.dtype.name],
            "shape": list(one.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_weights_come_from_a_file(tmp_path: Path, suffix: str) -> None:
    arrays = {key: one.numpy() for key, one in network.Detector(8).state_dict().items()}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        _safetensors(path, arrays)
    filled = network.network(8, weights=str(path)).state_dict()
    assert all(np.array_equal(filled[key].cpu().numpy(), arrays[key]) for key in arrays)
    with pytest.raises(InvalidConfig, match="weights of another network"):
        network.network(16, weights=str(path))


def test_bad_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no weights at"):
        network.load_weights(tmp_path / "none.npz")
    for name, data in (("a.npz", b"junk"), ("b.safetensors", b"\x10" * 40), ("c.safetensors", b"")):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InvalidConfig, match="export it again"):
            network.load_weights(path)
    pickled = tmp_path / "d.npz"
    np.savez(pickled, a=np.array([{}], object))
    with pytest.raises(InvalidConfig, match="export it again"):
        network.load_weights(pickled)
