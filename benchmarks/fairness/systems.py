"""Which pairs of policies are compared, and their results as one table.

Source: two-level fairness paper, table 7: first level by affinity, second level by measure.
Dominant shares are added, as the division that others use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fairness.fluid import Learning, MappingPolicy, System, run
from benchmarks.fairness.scenarios import Scenario
from hrm.core.vocabulary.columns import Bools, Floats
from hrm.policies.mapping import (
    CoRunnerAffinity,
    CoRunnerRoundRobin,
    MostAffectedFirst,
    OneTenantPerNode,
    RandomCombinations,
)
from hrm.policies.sharing import (
    Affinity,
    AffinityRoundRobin,
    ApplicationAffinityFirst,
    DivisionPolicy,
    DominantShare,
    ProviderAffinityFirst,
    SimpleFairness,
)

__all__ = [
    "DISTURBED",
    "FIRST_LEVEL",
    "GIVEN",
    "GRID",
    "LEARNED",
    "ROUND_ROBIN",
    "SECOND_LEVEL",
    "SIMPLE",
    "VARIANTS",
    "Label",
    "Table",
    "measure",
]

SIMPLE, ROUND_ROBIN = "simple-fairness", "affinity-round-robin"
FIRST_LEVEL = (SIMPLE, "provider-affinity-first", "application-affinity-first", ROUND_ROBIN)
SECOND_LEVEL = (
    "one-tenant-per-node",
    "random-combinations",
    "most-affected-first",
    "co-runner-round-robin",
)
"""The source's policies of either level."""


@dataclass(frozen=True, slots=True)
class Label:
    """``affinity`` is "-" where the first level looks at none."""

    division: str
    affinity: str
    mapping: str

    def __str__(self) -> str:
        return f"{self.division}, {self.affinity}, {self.mapping}"


_AWARE: tuple[DivisionPolicy, ...] = (
    ProviderAffinityFirst(),
    ApplicationAffinityFirst(),
    AffinityRoundRobin(),
)
_MAPPINGS: dict[str, MappingPolicy] = {
    "one-tenant-per-node": OneTenantPerNode(),
    "random-combinations": RandomCombinations(),
    "most-affected-first": MostAffectedFirst(),
    "co-runner-round-robin": CoRunnerRoundRobin(),
    "most-affected-first, raw": MostAffectedFirst(CoRunnerAffinity.RAW),
}

GRID: dict[Label, System] = {
    Label(SimpleFairness.name, "-", name): System(SimpleFairness(), Affinity.RECIPROCAL, mapping)
    for name, mapping in _MAPPINGS.items()
} | {
    Label(division.name, affinity.value, name): System(division, affinity, mapping)
    for division in _AWARE
    for affinity in Affinity
    for name, mapping in _MAPPINGS.items()
}
"""The first is what makespans are compared with: simple fairness, one tenant on a node."""

_DOMINANT = DominantShare()
GRID[Label(_DOMINANT.name, "-", "most-affected-first")] = System(
    _DOMINANT, Affinity.RECIPROCAL, MostAffectedFirst()
)


def _of_round_robin(mapping: str) -> Label:
    return Label("affinity-round-robin", "reciprocal", mapping)


VARIANTS: dict[Label, tuple[System, Label]] = {
    _of_round_robin(name): (System(division, Affinity.RECIPROCAL, mapping), _of_round_robin(base))
    for name, division, mapping, base in (
        ("200 cores in one turn", AffinityRoundRobin(200), _MAPPINGS["most-affected-first"],
         "most-affected-first"),
        ("20 nodes in one turn", AffinityRoundRobin(), CoRunnerRoundRobin(20),
         "co-runner-round-robin"),
        ("pairs at most", AffinityRoundRobin(), MostAffectedFirst(largest=2),
         "most-affected-first"),
        ("affinities once", AffinityRoundRobin(), MostAffectedFirst(again=False),
         "most-affected-first"),
    )
}  # fmt: skip
"""Of section 6.5, each with the pair of ``GRID`` that it is a variant of."""


def _knowing(margin: float, learning: Learning | None = None, *, disturbed: bool = False) -> System:
    return System(
        AffinityRoundRobin(margin=margin), Affinity.RECIPROCAL, OneTenantPerNode(), learning,
        disturbed=disturbed,
    )  # fmt: skip


GIVEN, DISTURBED = _of_round_robin("run times given"), _of_round_robin("disturbed times given")

LEARNED: dict[Label, System] = {
    GIVEN: _knowing(0.0),
    DISTURBED: _knowing(0.0, disturbed=True),
} | {
    _of_round_robin(name): _knowing(margin, learning)
    for name, margin, learning in (
        ("learned, sigma 0.3", 0.0, Learning()),
        ("learned, sigma 0.3, margin 5 %", 0.05, Learning()),
        ("learned, a third on nodes with idle cores", 0.0, Learning(partly=1 / 3)),
        ("learned, the same, margin 5 %", 0.05, Learning(partly=1 / 3)),
        ("learned, sigma 0.6, a quarter of the tasks", 0.0, Learning(sigma=0.6, most=5)),
        ("learned, that, margin 5 %", 0.05, Learning(sigma=0.6, most=5)),
        ("nothing known", 0.0, Learning(most=0)),
    )
}
"""What the first level knows of run times; the second one knows nothing in any of them."""


@dataclass(frozen=True)
class Table:
    """Runs by scenario and system; each array has shape (runs, scenarios, systems).

    Attributes:
        ratio: makespan over that of the first system, in the same run and scenario.
        wait_s: until the last tenant had its first core.
        moved: cores of a platform that tenants lost before their end.
        error: of learned run times, see ``Run``.
    """

    scenarios: tuple[tuple[str, str], ...]
    systems: tuple[Label, ...]
    fairness: Floats
    ratio: Floats
    jain: Floats
    wait_s: Floats
    moved: Floats
    error: Floats

    @property
    def kinds(self) -> list[str]:
        """Of scenarios, in order."""
        return list(dict.fromkeys(kind for kind, _ in self.scenarios))

    def of_kind(self, kind: str) -> Table:
        """Its scenarios only."""
        rows = [at for at, (each, _) in enumerate(self.scenarios) if each == kind]
        cells = {
            name: getattr(self, name)[:, rows]
            for name in ("fairness", "ratio", "jain", "wait_s", "moved", "error")
        }
        return Table(tuple(self.scenarios[at] for at in rows), self.systems, **cells)

    def first_level(self, division: str) -> Bools:
        """With reciprocal affinity and every mapping but the raw one."""
        which = self.where(division=division, affinity="reciprocal")
        return which & ~self.where(mapping="most-affected-first, raw")

    def second_level(self, mapping: str) -> Bools:
        """With every first level of the source, and reciprocal affinity."""
        which = np.zeros(len(self.systems), bool)
        for division in FIRST_LEVEL:
            which |= self.where(division=division, affinity="reciprocal", mapping=mapping)
        return which

    def where(
        self,
        *,
        division: str | None = None,
        affinity: str | None = None,
        mapping: str | None = None,
    ) -> Bools:
        """Which systems; a policy that looks at no affinity is of each."""
        return np.array(
            [
                (division is None or label.division == division)
                and (affinity is None or label.affinity in (affinity, "-"))
                and (mapping is None or label.mapping == mapping)
                for label in self.systems
            ]
        )


def measure(
    draw: Callable[[int], Sequence[Scenario]],
    systems: dict[Label, System],
    runs: Sequence[int],
    on_progress: Callable[[], None] = lambda: None,
) -> Table:
    """Every system in every scenario of every run; the same worlds for all systems."""
    first = next(iter(GRID))
    systems = {first: GRID[first]} | systems
    rows = []
    names: tuple[tuple[str, str], ...] = ()
    for number in runs:
        worlds = draw(number)
        names = tuple((each.kind, each.name) for each in worlds)
        rows.append([[_cells(each, one, number) for one in systems.values()] for each in worlds])
        on_progress()
    cells = np.array(rows)  # runs, scenarios, systems, figures
    makespans = cells[..., 1]
    return Table(
        scenarios=names,
        systems=tuple(systems),
        fairness=cells[..., 0],
        ratio=makespans / makespans[:, :, :1],
        jain=cells[..., 2],
        wait_s=cells[..., 3],
        moved=cells[..., 4],
        error=cells[..., 5],
    )


def _cells(scenario: Scenario, system: System, seed: int) -> tuple[float, ...]:
    found = run(scenario.world, system, seed)
    return (
        found.fairness, found.makespan_s, found.jain, max(found.waits_s), float(found.moved),
        found.error,
    )  # fmt: skip
