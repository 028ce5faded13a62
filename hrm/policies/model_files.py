"""Files of learned weights: arrays and what must be known of them, and no code.

A model is one ``.npz``: named arrays, and ``meta``, JSON as bytes. It is read without pickles, so
it can at worst be wrong. Checked is what would otherwise show as nonsense decisions: the format,
the kind of network, the hash of the feature schema, shapes, and that all weights are finite.

Files are called ``KIND-VERSION.npz``, and the greatest version counts. HRM's lie in
``hrm/policies/weights``; those trained here lie in a state directory and win over a default of the
same version.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hrm.durable import write_durably
from hrm.errors import InvalidConfig, NotFound

__all__ = ["PACKAGE_DIR", "Model", "ModelFile", "find", "listed", "read", "write"]

FORMAT = 1
BYTES_MAX = 64 * 1024 * 1024
PACKAGE_DIR = Path(__file__).resolve().parent / "weights"
_NAME = re.compile(r"(?P<kind>[a-z][a-z0-9-]*)-(?P<version>\d{1,9})\.npz")

_DAMAGE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What reading a file of any bytes may end in."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Weights of one network and their metadata.

    Attributes:
        kind: the policy or predictor that it is for, such as ``ldwp-set``.
        version: a whole number; greater ones are newer.
        schema: hash of the features that the network was trained on.
        meta: what else must be known, JSON values only (names of types, ranges, the command).
        arrays: float32, all finite.
    """

    kind: str
    version: int
    schema: str
    arrays: Mapping[str, Array]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}-{self.version}"

    def shaped(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Array]:
        """The arrays, if they are exactly those of ``shapes``.

        Raises:
            InvalidConfig: one is missing, too many, or has another shape.
        """
        for name, shape in shapes.items():
            found = self.arrays.get(name)
            if found is None or found.shape != shape:
                held = "is missing" if found is None else f"has the shape {found.shape}"
                raise InvalidConfig(
                    f"model {self}: array {name!r} {held}, the network needs {shape}; it was made "
                    f"for another network or cluster: train one (hrm policy train)"
                )
        extra = sorted(set(self.arrays) - set(shapes))
        if extra:
            raise InvalidConfig(
                f"model {self}: array {extra[0]!r} belongs to no network of kind {self.kind!r}; "
                f"train one (hrm policy train)"
            )
        return self.arrays


@dataclass(frozen=True, slots=True, order=True)
class ModelFile:
    """A file that has the name of a model; whether it is one shows when it is read."""

    kind: str
    version: int
    path: Path


def write(model: Model, path: Path) -> None:
    """Write ``model`` to ``path``, whole or not at all."""
    meta = {
        "format": FORMAT,
        "kind": model.kind,
        "version": model.version,
        "schema": model.schema,
        "meta": dict(model.meta),
    }
    held = io.BytesIO()
    text = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), dtype=np.uint8)
    arrays: dict[str, Any] = {
        f"array:{name}": np.asarray(array, dtype=np.float32) for name, array in model.arrays.items()
    }
    np.savez_compressed(held, meta=text, **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, held.getvalue())


def read(path: Path, *, kind: str | None = None) -> Model:
    """The model in ``path``.

    Raises:
        NotFound: there is no such file.
        InvalidConfig: it is no model, a damaged one, of another format or, where ``kind`` is given,
            of another kind.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(_content(path))) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > BYTES_MAX:
                raise _bad(path, f"unpacks to {size} bytes, more than the {BYTES_MAX} of a model")
            model = _model_of(path, {name: _member(archive, name) for name in archive.namelist()})
    except FileNotFoundError:
        raise NotFound(f"there is no model file {path}; train one: hrm policy train") from None
    except _DAMAGE as error:
        raise _bad(path, f"cannot be read ({type(error).__name__}: {error})") from error
    if kind is not None and model.kind != kind:
        raise _bad(path, f"is of kind {model.kind!r}, not {kind!r}")
    return model


def _content(path: Path) -> bytes:
    """The bytes of a file that may be a model: regular, and of at most ``BYTES_MAX``; opening a
    pipe does not wait for who writes to it.

    Raises:
        InvalidConfig: it is none.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _bad(path, "is no regular file")
        if found.st_size > BYTES_MAX:
            raise _bad(path, f"has {found.st_size} bytes, more than the {BYTES_MAX} of a model")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > BYTES_MAX:
        raise _bad(path, f"has grown beyond the {BYTES_MAX} bytes of a model")
    return content


def _member(archive: zipfile.ZipFile, name: str) -> Any:
    """One array, never one of objects: those would be pickles."""
    return np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)


def _model_of(path: Path, held: Mapping[str, Any]) -> Model:
    meta = json.loads(held["meta.npy"].tobytes())
    if meta["format"] != FORMAT:
        raise _bad(path, f"has format {meta['format']!r}; this HRM reads format {FORMAT}")
    if not isinstance(meta["kind"], str) or not isinstance(meta["version"], int):
        raise _bad(path, "has a kind that is no text or a version that is no whole number")
    if not isinstance(meta["schema"], str) or not isinstance(meta["meta"], dict):
        raise _bad(path, "has a schema that is no text or metadata that are no object")
    arrays = {}
    for member, array in held.items():
        if member.startswith("array:"):
            name = member.removeprefix("array:").removesuffix(".npy")
            if array.dtype != np.float32 or not np.isfinite(array).all():
                raise _bad(path, f"array {name!r} is not of finite float32 numbers")
            arrays[name] = array
    return Model(
        kind=meta["kind"],
        version=meta["version"],
        schema=meta["schema"],
        meta=meta["meta"],
        arrays=arrays,
    )


def listed(kind: str | None = None, state_dir: Path | None = None) -> list[ModelFile]:
    """Files that have the name of a model, oldest version first; a local one after a default."""
    found = [*_in(PACKAGE_DIR), *([] if state_dir is None else _in(state_dir))]
    return sorted(
        (file for file in found if kind in (None, file.kind)),
        key=lambda file: (file.kind, file.version, file.path.parent != PACKAGE_DIR),
    )


def find(kind: str, *, version: int | None = None, state_dir: Path | None = None) -> Model:
    """The newest model of ``kind``, or its ``version``.

    Raises:
        NotFound: there is none.
        InvalidConfig: it is damaged or not what its name states.
    """
    files = [f for f in listed(kind, state_dir) if version in (None, f.version)]
    if not files:
        wanted = kind if version is None else f"{kind}, version {version}"
        where = f"{PACKAGE_DIR}{'' if state_dir is None else f' or {state_dir}'}"
        raise NotFound(
            f"there are no weights for {wanted} in {where}; train some: hrm policy train {kind}"
        )
    model = read(files[-1].path, kind=kind)
    if model.version != files[-1].version:
        raise _bad(files[-1].path, f"holds version {model.version}, its name says another")
    return model


def _in(directory: Path) -> Iterator[ModelFile]:
    if directory.is_dir():
        for path in sorted(directory.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match:
                yield ModelFile(match["kind"], int(match["version"]), path)


def _bad(path: Path, what: str) -> InvalidConfig:
    return InvalidConfig(
        f"model file {path} {what}; remove it, or train a new one: hrm policy train"
    )
