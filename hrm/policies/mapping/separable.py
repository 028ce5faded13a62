"""Mappings for thousands of tenants, where slowdowns are separable, on nodes of pairs.

If a task of u beside v runs ``1 + sensitivity[u] * pressure[v]`` times as long as alone, v's
pressure is the same for all, and so is the order of preference; and the most affected is the one
that is most sensitive, whichever are left. So nothing has to be compared pair by pair: tenants go
by sensitivity, each takes the mildest that is left (itself, where it has cores for a whole node),
and every placement ends with one of the two having none left. Two sorts and one pass. Where tenants
choose in turn, a choice is as quick.

Source: two-level fairness paper, section 4.2.1, whose general form costs the cube of the tenants.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from hrm.errors import InvalidRequest
from hrm.policies.mapping.combinations import Combination, Mapping, Mix, mixed

__all__ = ["SeparableSlowdowns", "most_affected_first_of_pairs", "round_robin_of_pairs"]


@dataclass(frozen=True)
class SeparableSlowdowns:
    """``CoRunnerTimes`` of nodes with one or two tenants. Times alone are in seconds, the other
    two have no unit; each is by tenant."""

    time_alone_s: Sequence[float]
    sensitivity: Sequence[float]
    pressure: Sequence[float]

    def alone_s(self, tenant: int) -> float:
        """See ``CoRunnerTimes``."""
        return self.time_alone_s[tenant]

    def run_s(self, tenant: int, combination: Combination) -> float:
        """See ``CoRunnerTimes``; alone in the combination, a tenant's tasks meet their own."""
        other = next((each for each in combination if each != tenant), tenant)
        slowdown = 1 + self.sensitivity[tenant] * self.pressure[other]
        return self.time_alone_s[tenant] * slowdown


class _Partners:
    """Tenants by rising pressure, as a linked list from which those without cores are taken."""

    def __init__(self, tenants: Sequence[int]) -> None:
        links = [-1, *tenants, -1]
        self._next = dict(itertools.pairwise(links))
        self._before = dict(zip(links[1:], links[:-1], strict=True))

    def mildest(self, *, but: int = -1) -> int:
        """-1 where there is none."""
        first = self._next[-1]
        return self._next[first] if first == but != -1 else first

    def remove(self, tenant: int) -> None:
        before, after = self._before.pop(tenant), self._next.pop(tenant)
        self._next[before], self._before[after] = after, before


def most_affected_first_of_pairs(
    cores: Sequence[int], node_cores: int, slowdowns: SeparableSlowdowns, random: Generator
) -> Mapping:
    """Nodes by mix; ``random`` mixes what is left over. ``node_cores`` is even.

    As ``MostAffectedFirst(largest=2)``, but that the most sensitive is taken for the most affected
    (each tenant's mean is over partners of its own, so the two orders may differ a little).

    Raises:
        InvalidRequest: ``node_cores`` is odd.
    """
    half, left = _half(node_cores), list(cores)
    placed: Counter[Mix] = Counter()
    having = [tenant for tenant, count in enumerate(cores) if count >= half]
    partners = _Partners(sorted(having, key=lambda x: (slowdowns.pressure[x], x)))
    for tenant in sorted(having, key=lambda x: (-slowdowns.sensitivity[x], x)):
        if left[tenant] < half:
            continue  # a partner of others, removed then
        while left[tenant] >= half:
            whole = left[tenant] >= node_cores
            other = partners.mildest(but=-1 if whole else tenant)
            if other == -1:
                break
            if other == tenant:
                nodes = left[tenant] // node_cores
                placed[Mix(((tenant, node_cores),))] += nodes
                left[tenant] -= nodes * node_cores
            else:
                nodes = min(left[tenant], left[other]) // half
                first, second = sorted((tenant, other))
                placed[Mix(((first, half), (second, half)))] += nodes
                left[tenant] -= nodes * half
                left[other] -= nodes * half
                if left[other] < half:
                    partners.remove(other)
        if left[tenant] < half:
            partners.remove(tenant)
    placed.update(mixed(left, node_cores, random))
    return dict(placed)


def round_robin_of_pairs(
    cores: Sequence[int],
    node_cores: int,
    slowdowns: SeparableSlowdowns,
    step: int,
    random: Generator,
) -> Mapping:
    """As ``CoRunnerRoundRobin(step, largest=2)``: each tenant in turn takes the mildest that is
    left, itself among them where it has cores for a whole node, on ``step`` nodes at most.

    Raises:
        InvalidRequest: ``node_cores`` is odd.
    """
    half, left = _half(node_cores), list(cores)
    placed: Counter[Mix] = Counter()
    turns = [tenant for tenant, count in enumerate(cores) if count >= half]
    partners = _Partners(sorted(turns, key=lambda x: (slowdowns.pressure[x], x)))
    while turns:
        again = []
        for tenant in turns:
            other = -1
            if left[tenant] >= half:
                other = partners.mildest(but=-1 if left[tenant] >= node_cores else tenant)
            if other == -1:
                continue
            if other == tenant:
                nodes = min(step, left[tenant] // node_cores)
                placed[Mix(((tenant, node_cores),))] += nodes
                left[tenant] -= nodes * node_cores
            else:
                nodes = min(step, left[tenant] // half, left[other] // half)
                first, second = sorted((tenant, other))
                placed[Mix(((first, half), (second, half)))] += nodes
                left[tenant] -= nodes * half
                left[other] -= nodes * half
                if left[other] < half:
                    partners.remove(other)
            if left[tenant] < half:
                partners.remove(tenant)
            else:
                again.append(tenant)
        turns = again
    placed.update(mixed(left, node_cores, random))
    return dict(placed)


def _half(node_cores: int) -> int:
    if node_cores < 2 or node_cores % 2:
        raise InvalidRequest(
            f"nodes have {node_cores} cores, which are no two equal parts; map platforms of odd "
            "nodes by MostAffectedFirst or CoRunnerRoundRobin"
        )
    return node_cores // 2
