"""Could a queue ever hold this? If not, which queue's maximum is in the way?

Only what is certain refuses: an amount that is stated, or a part of all units that the master
knows, while none of its nodes is away, and once nodes have had ``application_grace_s`` to come,
which a master may not know of before. A user's limits and those of drivers always let one through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hrm.core.master import gangs
from hrm.core.master.entities import Application
from hrm.core.master.queue_usage import amount_of
from hrm.core.master.state import MasterState
from hrm.core.tenancy.queue_spec import GOVERNED, QueueSpec, quota_text
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.advice import advice_for
from hrm.core.vocabulary.model import ContainerRequest, NodeState, Resources

__all__ = ["refusal"]


def refusal(
    master_state: MasterState,
    app: Application,
    resources: Resources,
    now: float,
    coming: Sequence[ContainerRequest] = (),
) -> str:
    """Why the application's queue, or one above it, could never hold one container of this size, or
    the gang that begins with it and ``coming``; empty if it could, or nobody knows."""
    usage = master_state.queues
    if usage.accounts is None:
        return ""
    stated = [x.spec for x in usage.account(app).path if any(x.spec.maximum)]
    if not stated:
        return ""
    whole = _whole(master_state, now)
    asks_for = advice_for(app.application_id).queue
    for spec in stated:
        if which := _above(spec, amount_of(resources), whole):
            return (
                f"one container of {resources} is more {which} than the queue {spec.name} may ever "
                f"have (maximum {_shown(spec)}); request smaller ones, submit to another queue "
                f"({asks_for}), or raise it: hrm queue set {spec.name} --maximum"
            )
    many = gangs.missing(app)
    if not many or app.record.class_guessed:
        return ""
    least = _least(app, resources, coming)
    for spec in stated:
        if which := _above(spec, least, whole):
            name = gangs.setting(app)
            return (
                f"{app.gang_min} executors are to start together ({gangs.reason(app)}), which is "
                f"more {which} than the queue {spec.name} may ever have (maximum {_shown(spec)}); "
                f"set {name} to less, submit to another queue ({asks_for}), or raise it: "
                f"hrm queue set {spec.name} --maximum"
            )
    return ""


def _above(spec: QueueSpec, amount: Governed, whole: Governed | None) -> str:
    """Of which resource this is more than the queue's maximum; empty: of none, or nobody knows."""
    for which, most in enumerate(spec.maximum):
        if most is None or (most.is_part and whole is None):
            continue
        limit = most.of(0.0 if whole is None else whole[which])
        if amount[which] > limit + 1e-6:
            return GOVERNED[which].replace("gpu_memory", "memory of GPUs")
    return ""


def _least(app: Application, resources: Resources, coming: Iterable[ContainerRequest]) -> Governed:
    """What the gang holds at least, of each resource: its smallest containers, as far as it has
    requested them."""
    known = {x.request.executor_id: x.request.resources for x in app.containers.values()}
    known |= {x.executor_id: resources if x.gpus else x.resources for x in coming}
    amounts = [amount_of(x) for x in known.values()] or [amount_of(resources)]
    columns = (sorted(column)[: app.gang_min] for column in zip(*amounts, strict=True))
    cores, memory_mib, gpu_memory_mib = map(sum, columns)
    return (float(cores), float(memory_mib), float(gpu_memory_mib))


def _whole(master_state: MasterState, now: float) -> Governed | None:
    """All that the units have that the master knows, open or not; None while some are away, or may
    be."""
    if now < master_state.forgot_until_s:
        return None
    nodes, state = master_state.nodes.values(), master_state.state
    if master_state.recovering or not nodes or any(x.state is NodeState.LOST for x in nodes):
        return None
    rows = np.asarray(sorted(state.rows.values()))
    if not len(rows):
        return None
    _, first = np.unique(state.pool[rows], return_index=True)
    cores, memory_mib = state.total[rows[first], :2].sum(axis=0).tolist()
    return (float(cores), float(memory_mib), float(state.total[rows, 2].sum()))


def _shown(spec: QueueSpec) -> str:
    text = quota_text(spec.maximum)
    return text if isinstance(text, str) else ", ".join(f"{k} = {x}" for k, x in text.items())
