"""Pipelines inside of Spark's executors: each batch of rows is a task, its steps run where it is.

    labelled = map_in_pandas(detection, images, "path string, labels array<string>")

The first step gets a ``pandas.DataFrame``, the last one returns one with the columns of ``schema``;
``images`` may be a streaming DataFrame. Steps run in the executor's own Python workers. A GPU
version holds a part of the device memory that the executor has (``hrm.pipelines.client.local``) for
that step alone, so that steps of its tasks alternate; for the same reason ``overlap`` batches of
one partition are processed at a time. A step with both versions waits for a part for
``gpu_wait_s``, then uses its CPU version, as it does in an executor without a GPU.

Source: HRM paper, section 3.2.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm import errors
from hrm.pipelines.client.definition import Pipeline, Step
from hrm.pipelines.client.local import LocalGpus
from hrm.pipelines.client.sources import sources_of
from hrm.pipelines.core.model import Device

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["map_in_pandas"]


def map_in_pandas(
    pipeline: Pipeline,
    frame: DataFrame,
    schema: Any,
    *,
    overlap: int = 2,
    gpu_wait_s: float = 5.0,
    timeout_s: float = 600.0,
) -> DataFrame:
    """``frame.mapInPandas`` with ``pipeline`` over each batch; lazy as every transformation.

    ``schema``: of the result, as in ``mapInPandas``. ``timeout_s``: longest wait for a GPU of a
    step that has no CPU version.

    Raises:
        InvalidConfig: the pipeline cannot work, or executors could not import it.
    """
    if not 1 <= overlap <= 16:
        raise errors.InvalidConfig(f"overlap is {overlap}, it must be 1 to 16")
    sources = sources_of(pipeline)
    pipeline.spec(sources.reference)
    run = _Batches(sources.reference, sources.files, overlap, gpu_wait_s, timeout_s)
    return frame.mapInPandas(run, schema)


@dataclass(frozen=True)
class _Batches:
    """What executors call with an iterator over one partition's batches; pickled by reference."""

    reference: str
    files: tuple[tuple[str, bytes], ...]
    overlap: int
    gpu_wait_s: float
    timeout_s: float

    def __call__(self, batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        pipeline = _import(self.reference, self.files)
        order = [pipeline.steps[one.name] for one in pipeline.spec(self.reference).subtasks]
        gpus = LocalGpus()
        pool = ThreadPoolExecutor(self.overlap, thread_name_prefix="pipeline")
        waiting: deque[Future[pd.DataFrame]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(self._task, order, batch, gpus))
                if len(waiting) >= self.overlap:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _task(self, order: list[Step], batch: pd.DataFrame, gpus: LocalGpus) -> pd.DataFrame:
        results: dict[str, Any] = {}
        for step in order:
            inputs = [results[name] for name in step.after] if step.after else [batch]
            try:
                results[step.name] = self._step(step, inputs, gpus)
            except errors.HrmError:
                raise
            except Exception as error:
                error.add_note(f"in subtask {step.name!r} of pipeline {self.reference}")
                raise
        last_frame: pd.DataFrame = results[order[-1].name]
        return last_frame

    def _step(self, step: Step, inputs: list[Any], gpus: LocalGpus) -> Any:
        gpu, cpu = step.versions.get(Device.GPU), step.versions.get(Device.CPU)
        if gpu is None or (cpu is not None and not gpus.there):
            assert cpu is not None, "checked by Pipeline.spec"
            return cpu(*inputs)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(
                    gpus.share(
                        step.kind,
                        gpu_memory_mib=step.gpu_memory_mib,
                        wait_s=self.timeout_s if cpu is None else self.gpu_wait_s,
                    )
                )
            except (errors.Unavailable, errors.Unsatisfiable):
                if cpu is None:
                    raise
                return cpu(*inputs)
            return gpu(*inputs)


def _import(reference: str, files: tuple[tuple[str, bytes], ...]) -> Pipeline:
    """The pipeline, from this worker's packages or from ``files``, which are written once."""
    name, _, attribute = reference.partition(":")
    if files:
        from pyspark import SparkFiles

        # The executor's own directory, removed with it: one copy for all of its workers.
        home = SparkFiles.getRootDirectory()
        digest = hashlib.sha256(repr(files).encode()).hexdigest()[:16]
        root = Path(home) / f"hrm-pipeline-{digest}"
        if not root.exists():
            fresh = Path(tempfile.mkdtemp(prefix="hrm-pipeline-", dir=home))
            for path, content in files:
                target = fresh / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            with contextlib.suppress(OSError):  # another worker was faster
                fresh.rename(root)
        _come_first(root, name)
    try:
        found = getattr(importlib.import_module(name), attribute)
    except Exception as error:
        raise errors.InvalidConfig(
            f"pipeline {reference!r} cannot be imported in the executor: {type(error).__name__}: "
            f"{error}; install what it needs on the nodes"
        ) from error
    assert isinstance(found, Pipeline)
    return found


def _come_first(root: Path, name: str) -> None:
    """Import ``name`` from ``root``: a worker outlives queries, and may have another version."""
    if str(root) in sys.path:
        sys.path.remove(str(root))
    sys.path.insert(0, str(root))
    package = name.partition(".")[0]
    for known in [one for one in sys.modules if one == package or one.startswith(f"{package}.")]:
        file = getattr(sys.modules[known], "__file__", None)
        if file is None or not Path(file).is_relative_to(root):
            del sys.modules[known]
    importlib.invalidate_caches()
