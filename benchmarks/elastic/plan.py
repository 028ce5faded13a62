"""What is trained, and on how much of a cluster.

Three applications train models of PyTorch on the same data. Each epoch is one Spark job: every task
computes the gradient over its shard, the driver adds the gradients up in the order of the shards
and makes one step of Adam. So a model does not depend on how many executors there are.

A task holds its slot for ``device_s``, as it would while an accelerator computes: the gradients are
real and take milliseconds, the rest of this time is emulated. Otherwise two cores would be what
nine slots compete for.

An application ends after ``patience`` epochs without a better accuracy, or after its last epoch:
the same rule whatever the arm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["ARMS", "COMPARED", "ELASTIC", "QUICK", "Arm", "Plan", "Training"]

ELASTIC = "elastic"


@dataclass(frozen=True, slots=True)
class Training:
    """A model with one layer of ``hidden`` units (0: none), trained with ``learning_rate`` for at
    most ``epochs``; each task holds its slot for ``device_s`` seconds."""

    name: str
    hidden: int
    learning_rate: float
    device_s: float
    epochs: int

    @property
    def queue(self) -> str:
        return f"root.{self.name}"


@dataclass(frozen=True, slots=True)
class Arm:
    """``dynamic``: with Spark's dynamic allocation, from a third of the slots to all, otherwise as
    it is by default. ``elastic``: with the master's elasticity, as it is by default; else it is
    off. ``whole``: each application requests executors on all slots, and has its third for as long
    as the others have theirs; else it requests its third. ``policy``: instead of the default."""

    about: str
    dynamic: bool = False
    elastic: bool = False
    whole: bool = False
    policy: str = ""


ARMS = {
    "static": Arm("a third of the slots each"),
    "dynamic": Arm("Spark's dynamic allocation", dynamic=True),
    "queues": Arm("HRM's queues alone", whole=True),
    ELASTIC: Arm("HRM's elasticity", elastic=True, whole=True),
    "on-demand": Arm("elasticity by the trend alone", elastic=True, whole=True,
                     policy="beta-on-demand"),
}  # fmt: skip
"""In all of them each application has a queue that is guaranteed its third."""
COMPARED = "static", "dynamic", "queues", ELASTIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements.

    ``tasks``: of an epoch, one for each shard of ``rows`` rows, twice as many as there are slots.
    ``held_out``: rows that no model is trained on; accuracy is over these. ``better``: by so much
    an accuracy has to rise to count as better.
    """

    runs: int = 3
    nodes: int = 3
    slots_per_node: int = 3
    trainings: tuple[Training, ...] = (
        Training("linear", 0, 0.3, 0.15, 110),
        Training("narrow", 24, 0.03, 0.15, 110),
        Training("wide", 64, 0.002, 0.3, 90),
    )
    tasks: int = 18
    rows: int = 200
    held_out: int = 5_000
    features: int = 16
    classes: int = 4
    patience: int = 20
    better: float = 0.001
    seed: int = 2
    executor_memory_mib: int = 512
    executor_overhead_mib: int = 384

    @property
    def slots(self) -> int:
        return self.nodes * self.slots_per_node

    @property
    def third(self) -> int:
        """Executors of each application where none requests all slots."""
        return self.slots // len(self.trainings)


QUICK = replace(
    Plan(),
    runs=1,
    trainings=(
        Training("linear", 0, 0.1, 0.1, 50),
        Training("narrow", 24, 0.02, 0.1, 60),
        Training("wide", 64, 0.001, 0.2, 60),
    ),
)
