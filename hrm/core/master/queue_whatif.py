"""What would happen if containers were requested: answered on a copy of what queues hold."""

from __future__ import annotations

import math

from hrm.core.master import admission
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.queue_usage import Level, QueueUsage, amount_of
from hrm.core.master.reclaim_plan import Reclaim, Wanted
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import NOTHING, AccountTree, QueueAccount, fits_into, less, more
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_status import Supposed, Supposition
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.feasibility import Vector, demand_vector, fitting_rows
from hrm.errors import InvalidRequest, NotAllowed, NotFound, Unsatisfiable

__all__ = ["what_if"]


def what_if(
    master_state: MasterState, placement: PlacementCoordinator, asked: Supposition, now: float
) -> Supposed:
    """Nothing is changed. Batch without requirements of nodes is supposed, in one application.

    Raises:
        NotFound: there is no such queue.
        InvalidRequest: the request is malformed.
        Unsatisfiable: no node, or not the queue, could ever hold one of them.
        NotAllowed: the user may not submit to the queue.
    """
    executors, resources = asked.executors, asked.resources
    name = _queue(master_state, asked)
    usage = QueueUsage(master_state.state, master_state.queues.tree)
    usage.begin(usage.tree, master_state.live_applications(), always=True)
    accounts = usage.accounts
    assert accounts is not None, "it has just been counted"
    account = accounts.of[name]
    amount, demand = amount_of(resources), demand_vector(resources)
    if not fits_into(amount, NOTHING, account.limits.maximum):
        raise Unsatisfiable(f"one executor of {resources} is more than the maximum of {name}")
    others_want = any(x != name for x in usage.wanting)
    account.holds(less(account.wanted, account.held))  # what waits there already goes first
    account.places(less(account.wanted, account.placed))
    account.wants(_times(amount, executors))
    most, why_of_user = executors, ""
    if asked.user:
        most, why_of_user = _of_user(master_state, usage, account, asked)
    passes = _passing(accounts, account, amount, most, within_share=others_want)
    at_once = min(passes, master_state.state.startable(demand))
    account.holds(_times(amount, at_once))
    account.places(_times(amount, at_once))
    is_on = master_state.queues.governs and master_state.bounds.queue_preemption
    rest = most - at_once if is_on and account.full() is None else 0
    found: list[Reclaim] = []
    if rest:
        claim = Wanted(account, resources, is_stream=False)
        found = placement.reclaim.supposed(claim, rest, usage)
    preempted = [x for each in found for x in each.victims]
    later = executors - at_once - len(found)
    why = ""
    if later:
        is_limited = at_once + len(found) == most
        why = _why(account, amount, why_of_user if is_limited else "", others_want=others_want)
    return Supposed(
        at_once=at_once,
        by_preemption=len(found),
        later=later,
        preempted=tuple((x.container_id, x.application_id) for x in preempted),
        grace_s=master_state.bounds.queue_preemption_grace_s,
        later_s=_later_s(master_state, demand, now) if later else None,
        why=why,
    )


def _queue(master_state: MasterState, asked: Supposition) -> QueueName:
    """The queue that takes them; raises as ``what_if``."""
    tree = master_state.queues.tree
    name = tree.find(asked.queue)
    if name is None:
        raise NotFound(tree.unknown(asked.queue))
    if asked.executors < 1:
        raise InvalidRequest(f"{asked.executors} executors are none; ask for one at least")
    if asked.user and not tree.may_submit(name, asked.user):
        raise NotAllowed(f"{asked.user} may not submit to {name} (hrm queue show {name})")
    why = admission.refusal(master_state, asked.resources)
    if why:
        raise Unsatisfiable(why)
    return name


def _of_user(
    master_state: MasterState, usage: QueueUsage, account: QueueAccount, asked: Supposition
) -> tuple[int, str]:
    """How many more of these the user may hold, where all of its own that wait go first, and why
    no more: the limits of ``core.master.queue_passing``."""
    spec, name, user = account.spec, account.name, asked.user
    amount, most, why = amount_of(asked.resources), asked.executors, ""
    held = usage.of_user.get((name, user), NOTHING)
    for entry in usage.entries.values():
        is_own = entry.account is account and entry.app.record.user == user
        if is_own and entry.level is Level.WANTED:
            held = more(held, entry.amount)
    if spec.user_limit_factor is not None:
        limit = _part(account.limits.guaranteed, spec.user_limit_factor)
        most = _within(amount, held, limit, most)
        why = f"{user} would hold as much of {name} as one user may (user_limit_factor)"
    live = [x for x in master_state.live.values() if x.record.queue == name and x.containers]
    many = len(usage.users[name].keys() | {x.record.user for x in live} | {user})
    if many > 1 and spec.minimum_user_limit < 1:
        assert usage.accounts is not None, "it has been counted"
        share = usage.accounts.share(account)
        limit = _part(share, max(1 / many, spec.minimum_user_limit))
        passes = _within(amount, held, limit, most)
        if held == NOTHING:
            passes = max(passes, min(1, most))
        if passes < most:
            most = passes
            why = (
                f"{user} would hold a user's part of {name}, of which {many} have some "
                f"(minimum_user_limit = {spec.minimum_user_limit:g})"
            )
    return most, why if most < asked.executors else ""


def _passing(
    accounts: AccountTree, account: QueueAccount, amount: Governed, most: int, *, within_share: bool
) -> int:
    """How many of these its queue would let pass."""
    if account.full() is not None:
        return 0
    share = accounts.share(account) if within_share else accounts.capacity
    passing = _within(amount, account.held, share, most)
    for each in account.path[:-1]:
        passing = min(passing, _within(amount, each.held, each.limits.maximum, most))
    return passing


def _within(amount: Governed, held: Governed, limit: Governed, most: int) -> int:
    many = [
        math.floor((z - y + 1e-6) / x)
        for x, y, z in zip(amount, held, limit, strict=True)
        if x and not math.isinf(z)
    ]
    return max(0, min([most, *many]))


def _times(amount: Governed, many: int) -> Governed:
    return (amount[0] * many, amount[1] * many, amount[2] * many)


def _part(whole: Governed, part: float) -> Governed:
    return (whole[0] * part, whole[1] * part, whole[2] * part)


def _later_s(master_state: MasterState, demand: Vector, now: float) -> float | None:
    """The shortest wait of one at any unit, by the run times that are known."""
    state = master_state.state
    rows = (state.open & state.serving(demand) & fitting_rows(demand, state.total)).nonzero()[0]
    wait_s = float(state.waits_s(demand, rows, now).min(initial=math.inf))
    return None if math.isinf(wait_s) else wait_s


def _why(account: QueueAccount, amount: Governed, of_user: str, *, others_want: bool) -> str:
    full = account.full()
    if full is not None:
        return f"{full.name} runs as many applications as it may (max_running)"
    highest = account.above_maximum(amount)
    if highest is not None:
        return f"{highest.name} holds as much as it may (maximum)"
    if of_user:
        return of_user
    if others_want and not fits_into(amount, account.placed, account.limits.guaranteed):
        return f"{account.name} has what it is guaranteed, and other queues wait for their shares"
    return "no capacity is free, and nothing more may be preempted for it"
