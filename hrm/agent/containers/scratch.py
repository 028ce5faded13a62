"""Scratch space of containers on disks of its own (``work_dirs``), a directory on each.

    <work_dirs[0]>/<identity of the agent>/containers/<container>/
    <work_dirs[1]>/<identity of the agent>/containers/<container>/
    .../<identity of the agent>/shuffle/    of the shuffle service, see ``hrm.agent.shuffle``

Spark spreads its blocks and shuffle files over all that it is given (``spark.local.dir``). Only
these go there: records, logs and files of applications stay in ``work_dir``. A disk that has too
little space, or that cannot be written, is left out of the containers that start while that is so.
What a container had there goes with it, and what a crash left when the agent starts again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from hrm.agent.containers.container_dir import hand_over
from hrm.agent.disk_floor import free_and_floor_mib
from hrm.agent.run_as import Account, closed_parent
from hrm.config import AgentSettings
from hrm.errors import InvalidConfig, LaunchFailed

__all__ = ["SHUFFLE_DIR", "Scratch", "local_dirs", "names_in"]

SHUFFLE_DIR = "shuffle"
"""Below the work directory, and below the home on each disk of scratch space."""

LOCAL_DIRS = {"SPARK_LOCAL_DIRS": ",", "SPARK_EXECUTOR_DIRS": ":"}
"""Variables that name an application's scratch directories, and what separates them there."""
_log = structlog.get_logger("hrm.agent.containers")


def local_dirs(places: Sequence[Path]) -> dict[str, str]:
    """The variables that name these to Spark."""
    return {name: mark.join(map(str, places)) for name, mark in LOCAL_DIRS.items()}


class Scratch:
    """``homes``: of this agent, one a disk; none: scratch space is in the containers' own
    directories. ``places``: in which each container has a directory."""

    def __init__(
        self,
        homes: Sequence[Path] = (),
        *,
        free_min_mib: int = 0,
        usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
    ) -> None:
        """``free_min_mib``: what must be free on a disk for it to be used; ``usage``: bytes of a
        path's file system: all, used, free."""
        self.places = tuple(home / "containers" for home in homes)
        self.shuffle_places = tuple(home / SHUFFLE_DIR for home in homes)
        self._free_min_mib = free_min_mib
        self._usage = usage

    @classmethod
    def of(cls, settings: AgentSettings, identity: str, *, run_as: bool) -> Scratch:
        """That of an agent; creates its directories. ``run_as``: containers may run as others.

        Raises:
            InvalidConfig: none of ``work_dirs`` can be used, or one is closed to other users.
        """
        homes = []
        for directory in settings.work_dirs:
            home = directory / identity
            if run_as and (closed := closed_parent(home)):
                raise InvalidConfig(
                    f"containers run as their submitter, and other users cannot reach {directory} "
                    f"(work_dirs): {closed} is closed to them; open it (chmod o+x), or choose "
                    f"another place, or --run-as off"
                )
            try:
                for place in (home, home / "containers", home / SHUFFLE_DIR):
                    place.mkdir(mode=0o711, exist_ok=True)
                    place.chmod(0o711)
            except OSError as error:
                _log.warning("scratch space is left out", path=str(directory), why=error.strerror)
            else:
                homes.append(home)
        if settings.work_dirs and not homes:
            raise InvalidConfig(
                "none of work_dirs can be written; mount the disks, create the directories for the "
                "agent's user, or leave work_dirs out to have scratch space in work_dir"
            )
        return cls(homes, free_min_mib=settings.disk_free_min_mib)

    def usable(self) -> list[Path]:
        """Those that have enough space now, or else the one that has most."""
        found = []
        for place in self.places:
            with contextlib.suppress(OSError):
                free_mib, floor = free_and_floor_mib(place, self._free_min_mib, self._usage)
                found.append((free_mib - floor, place))
        enough = [place for left_mib, place in found if left_mib >= 0]
        return enough or [place for _, place in sorted(found, reverse=True)[:1]]

    def prepare(
        self, container_id: str, account: Account | None, environment: Mapping[str, str]
    ) -> dict[str, str]:
        """Create a container's directories, for ``account`` (None: the agent); returns the
        variables that name them, of those that ``environment`` has.

        Raises:
            LaunchFailed: no disk takes one.
        """
        wanted = [name for name in LOCAL_DIRS if name in environment]
        if not self.places or not wanted:
            return {}
        made, problem = [], "none can be asked how much is free"
        for place in self.usable():
            directory = place / container_id
            try:
                directory.mkdir(mode=0o700, exist_ok=True)
                hand_over(directory, account)
            except OSError as error:
                problem = f"{directory}: {error.strerror}"
                _log.warning("scratch space is left out", path=str(directory), why=error.strerror)
            else:
                made.append(directory)
        if not made:
            raise LaunchFailed(f"no scratch directory of this node (work_dirs) works: {problem}")
        variables = local_dirs(made)
        return {name: variables[name] for name in wanted}

    def names(self) -> set[str]:
        """Of all that is there: of containers that run, and what an earlier run of the agent
        left."""
        return names_in(self.places)


def names_in(places: Iterable[Path]) -> set[str]:
    """Of all containers that have something in one of these directories, as far as can be read."""
    found: set[str] = set()
    for place in places:
        with contextlib.suppress(OSError):
            found.update(entry.name for entry in os.scandir(place))
    return found
