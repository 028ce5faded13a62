"""How users write pipelines: decorated functions, checked when the pipeline is first used.

Every step runs in a process of its own on some node, which imports the pipeline's module: functions
must be found by name there, and what they take and return must pickle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, overload

from hrm.errors import InvalidConfig
from hrm.pipelines.core.model import Device, PipelineSpec, ResultFormat, SubtaskSpec

__all__ = ["Pipeline", "Step", "to_format"]

Function = Callable[..., Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(eq=False)
class Step:
    """One step: a name, its versions and its limits. ``Pipeline.subtask`` makes them."""

    name: str
    _: KW_ONLY
    kind: str
    after: tuple[str, ...]
    memory_mib: int
    gpu_memory_mib: int
    timeout_s: float
    attempts: int
    versions: dict[Device, Function] = field(default_factory=dict)

    def cpu(self, function: Function) -> Step:
        """A decorator: ``function`` is the version for one core."""
        return self._version(Device.CPU, function)

    def gpu(self, function: Function) -> Step:
        """A decorator: ``function`` is the version for a GPU, which it finds as ``cuda:0``."""
        return self._version(Device.GPU, function)

    def _version(self, device: Device, function: Function) -> Step:
        if device in self.versions:
            raise InvalidConfig(
                f"subtask {self.name!r} has two {device.value} versions, "
                f"{_where(self.versions[device])} and {_where(function)}; keep one"
            )
        self.versions[device] = function
        return self

    def __call__(self, *inputs: Any) -> Any:
        """Run it here: the CPU version, or else the only one."""
        if not self.versions:
            raise InvalidConfig(_without_version(self.name))
        function = self.versions.get(Device.CPU) or self.versions[Device.GPU]
        return function(*inputs)

    def spec(self) -> SubtaskSpec:
        return SubtaskSpec(
            name=self.name,
            kind=self.kind,
            after=self.after,
            devices=frozenset(self.versions),
            memory_mib=self.memory_mib,
            gpu_memory_mib=self.gpu_memory_mib,
            timeout_s=self.timeout_s,
            attempts=self.attempts,
        )


class Pipeline:
    """A small DAG of steps. ``name`` is the task type that schedulers learn about.

    ``result_format``: how results travel ("auto", "json", "arrow", "pickle"), unless the call that
    submits says otherwise.
    """

    def __init__(self, name: str, *, result_format: str = "auto") -> None:
        if not _NAME.fullmatch(name):
            raise InvalidConfig(
                f"{name!r} is no name for a pipeline: letters, digits, '.', '_' and '-', at most 63"
            )
        self.name = name
        self.result_format = to_format(result_format)
        self.steps: dict[str, Step] = {}

    @overload
    def subtask(self, name: Function, /) -> Step: ...

    @overload
    def subtask(
        self,
        name: str | None = None,
        *,
        after: Step | str | Iterable[Step | str] = (),
        kind: str | None = None,
        memory_mib: int = 0,
        gpu_memory_mib: int = 0,
        timeout_s: float = 600.0,
        attempts: int = 3,
        gpu_only: bool = False,
    ) -> Callable[[Function], Step]: ...

    def subtask(
        self,
        name: str | Function | None = None,
        *,
        after: Step | str | Iterable[Step | str] = (),
        kind: str | None = None,
        memory_mib: int = 0,
        gpu_memory_mib: int = 0,
        timeout_s: float = 600.0,
        attempts: int = 3,
        gpu_only: bool = False,
    ) -> Callable[[Function], Step] | Step:
        """A decorator, with or without arguments: makes a step with this CPU version (``gpu_only``:
        this GPU version).

        ``after``: the steps whose results it takes, in the order of its arguments. ``kind``: under
        which its run times and loads are recorded; steps of several pipelines that do the same
        may share one. ``memory_mib``: the most host memory it may use, 0 for no limit.
        """
        follows = (after,) if isinstance(after, Step | str) else tuple(after)

        def decorate(function: Function) -> Step:
            own = name if isinstance(name, str) and name else function.__name__
            self._check(own, timeout_s, attempts, memory_mib, gpu_memory_mib)
            step = Step(
                own,
                kind=kind or f"{self.name}/{own}",
                after=tuple(one.name if isinstance(one, Step) else one for one in follows),
                memory_mib=memory_mib,
                gpu_memory_mib=gpu_memory_mib,
                timeout_s=timeout_s,
                attempts=attempts,
            )
            self.steps[own] = step
            return step.gpu(function) if gpu_only else step.cpu(function)

        return decorate(name) if callable(name) else decorate

    def spec(self, reference: str) -> PipelineSpec:
        """The pipeline as schedulers know it, its subtasks in an order in which they can run.

        Raises:
            InvalidConfig: no step, a cycle, an unknown or duplicate name, a step without a version,
                several last steps; the message names the steps.
        """
        order = self._order()
        specs = tuple(self.steps[name].spec() for name in order)
        for spec in specs:
            if not spec.devices:
                raise InvalidConfig(_without_version(spec.name))
        return PipelineSpec(name=self.name, reference=reference, subtasks=specs)

    def run_here(self, value: Any) -> Any:
        """The whole pipeline in this process, step by step, on the CPU where there is a choice.

        A cluster must return an equal result for ``value``.
        """
        results: dict[str, Any] = {}
        for name in self._order():
            step = self.steps[name]
            inputs = [results[one] for one in step.after] if step.after else [value]
            results[name] = step(*inputs)
        return results[name]

    def _check(
        self, name: str, timeout_s: float, attempts: int, memory_mib: int, gpu_memory_mib: int
    ) -> None:
        label = f"pipeline {self.name!r}, subtask {name!r}"
        if not _NAME.fullmatch(name):
            raise InvalidConfig(
                f"{label}: a name has letters, digits, '.', '_' and '-', at most 63"
            )
        if name in self.steps:
            raise InvalidConfig(f"{label} is there twice; give one of them another name")
        if not timeout_s > 0:
            raise InvalidConfig(f"{label}: timeout_s is {timeout_s}, it must be above 0")
        if not 1 <= attempts <= 10:
            raise InvalidConfig(f"{label}: attempts is {attempts}, it must be 1 to 10")
        if memory_mib < 0 or gpu_memory_mib < 0:
            raise InvalidConfig(f"{label}: memory_mib and gpu_memory_mib must not be below 0")

    def _order(self) -> list[str]:
        if not self.steps:
            raise InvalidConfig(
                f"pipeline {self.name!r} has no subtask; decorate functions with its subtask()"
            )
        for step in self.steps.values():
            for one in step.after:
                if one not in self.steps:
                    raise InvalidConfig(
                        f"pipeline {self.name!r}: subtask {step.name!r} comes after {one!r}, which "
                        f"it does not have; it has {', '.join(self.steps)}"
                    )
        sorter = TopologicalSorter({name: step.after for name, step in self.steps.items()})
        try:
            order = list(sorter.static_order())
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
            raise InvalidConfig(
                f"pipeline {self.name!r} has a cycle: {cycle}; take one of these out of `after`"
            ) from error
        followed = {one for step in self.steps.values() for one in step.after}
        last = [name for name in order if name not in followed]
        if len(last) > 1:
            raise InvalidConfig(
                f"pipeline {self.name!r} has several last subtasks, {', '.join(last)}; one must "
                f"come after all others and return the task's result"
            )
        return order


def to_format(name: str) -> ResultFormat:
    """The format of this name.

    Raises:
        InvalidConfig: there is none.
    """
    try:
        return ResultFormat(name)
    except ValueError:
        names = ", ".join(one.value for one in ResultFormat)
        raise InvalidConfig(f"result_format is {name!r}; it may be {names}") from None


def _without_version(name: str) -> str:
    return f"subtask {name!r} has neither a CPU nor a GPU version; decorate one with .cpu or .gpu"


def _where(function: Function) -> str:
    return f"{function.__module__}.{function.__qualname__}"
