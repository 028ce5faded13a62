"""What makes executors of this node start faster, taken together."""

from __future__ import annotations

from hrm.agent.startup.archives import ArchiveKeeper
from hrm.agent.startup.warm import WarmPool
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import Shortcut
from hrm.spark.launch import Java, Spark

__all__ = ["Shortcuts"]


class Shortcuts:
    """Archives of classes and warm JVMs of one Spark. Needs a running event loop."""

    def __init__(self, settings: AgentSettings, spark: Spark, java: Java) -> None:
        self.archives = ArchiveKeeper(settings, spark, java)
        self.warm = WarmPool(settings, spark)

    def start(self) -> None:
        """Start preparing, in the background."""
        self.archives.start()
        self.warm.start()

    async def close(self) -> None:
        """End what waits and what is being prepared; executors already taken run on."""
        await self.warm.close()
        await self.archives.close()

    def report(self) -> tuple[Shortcut, ...]:
        """For ``hrm node show``."""
        return (*self.archives.report(), *self.warm.report())
