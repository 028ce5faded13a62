"""A token holder that claims another's identity: it knows every id, and no ownership key.

It registers and attaches as an application, as a node or as the runner of a submitted driver, while
that one lives or is away and may come back. The oracle reports any such call that is admitted; what
the owner has then is checked as in every other run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, NodeName, NodeState
from hrm.errors import HrmError, NotOwner
from hrm.sim.faults.plan import TimedFault

if TYPE_CHECKING:
    from hrm.sim.actors.driver import Driver
    from hrm.sim.actors.machine_actor import MachineActor
    from hrm.sim.world import World

__all__ = ["strike"]

_OWNER = "owner nobody"
_SESSION = 1 << 40
_STAY_S = 1.0


def strike(world: World, fault: TimedFault) -> bool:
    """One attempt, under the identity that ``fault`` picks."""
    if world.master.core is None:
        return False
    kinds = (_as_application, _as_node, _as_runner)
    number = int(fault.size * len(kinds))
    return kinds[number](world, fault)


def _as_application(world: World, fault: TimedFault) -> bool:
    """Of one that the master knows: what a lost store held goes to the first that names it."""
    core = world.master.core
    assert core is not None
    all_drivers = (*world.drivers, *world.submitters.drivers)
    owners = [x for x in all_drivers if _has_application(world, x.application_id) and not x.outcome]
    if not owners:
        return False
    owner: Driver = owners[int(fault.pick * len(owners))]
    application_id = owner.application_id
    world.log.emit("impostor", f"says that it is {application_id}")
    event = owner.registration(application_id)
    register = e.ApplicationRegistered(
        now=0.0,
        call_id=0,
        application_id=application_id,
        submission_key=event.submission_key,
        name=event.name,
        user=event.user,
        owner=_OWNER,
    )
    attach = e.ApplicationAttached(
        now=0.0,
        call_id=0,
        application_id=application_id,
        session=_SESSION,
        epoch=core.epoch,
        owner=_OWNER,
    )

    def leave() -> None:
        if world.master.core is not None:
            world.master.submit(
                e.ApplicationDetached(
                    now=world.master.now(), application_id=application_id, session=_SESSION
                )
            )

    def attached(result: c.Reply | c.Refuse) -> None:
        """One that is admitted to what was lost goes away in the end, like all others."""
        if isinstance(result, c.Reply):
            world.clock.after(_STAY_S, leave)

    def anothers() -> bool:
        return _has_application(world, application_id)

    claimed = f"as {application_id}"
    _refused_if(world, anothers, claimed, register)
    _refused_if(world, anothers, claimed, attach, attached)
    return True


def _has_application(world: World, application_id: ApplicationId) -> bool:
    """The master has recorded another owner."""
    core = world.master.core
    app = None if core is None else core.master_state.applications.get(application_id)
    return app is not None and app.record.owner != _OWNER


def _as_node(world: World, fault: TimedFault) -> bool:
    """Of one that the master has, or waits for: the name of a lost node is free for any agent."""
    core = world.master.core
    assert core is not None
    owners = [x for x in world.machines if _has_node(world, x.name)]
    if not owners:
        return False
    owner: MachineActor = owners[int(fault.pick * len(owners))]
    known = core.master_state.nodes.get(owner.name)
    identity = known.identity if known is not None else f"{owner.name}-1"
    world.log.emit("impostor", f"says that it is {owner.name}")

    register = e.NodeRegistered(
        now=0.0,
        call_id=0,
        node=owner.name,
        identity=identity,
        incarnation="impostor",
        sequence=1,
        host="127.0.0.1",
        endpoint="127.0.0.1:1",
        units=owner.units,
        owner=_OWNER,
    )
    _refused_if(world, lambda: _has_node(world, owner.name), f"as {owner.name}", register)
    return True


def _has_node(world: World, name: NodeName) -> bool:
    """The master has it, or waits for it, as another's."""
    core = world.master.core
    if core is None:
        return False
    node = core.master_state.nodes.get(name)
    if node is not None and node.state is not NodeState.LOST:
        return node.owner != _OWNER
    if name not in core.nodes.awaited:
        return False
    try:
        core.nodes.check_owner(name, _OWNER)
    except NotOwner:
        return True
    return False


def _as_runner(world: World, fault: TimedFault) -> bool:
    """It reports a running driver as gone: the next would be started next to it."""
    submissions = world.master.submissions
    live = [] if submissions is None else submissions.core.live()
    if submissions is None or not live:
        return False
    record = live[int(fault.pick * len(live))].record
    name = f"driver {record.attempt} of {record.submission_id}"
    world.log.emit("impostor", f"says that {name} is gone")

    def replied(result: Any) -> None:
        if not isinstance(result, HrmError):
            world.oracle.violated(f"an impostor is heard as the runner of {name}")

    submissions.lease(record.submission_id, record.attempt, True, "a guess", replied)
    return True


def _refused_if(
    world: World,
    anothers: Callable[[], bool],
    claimed: str,
    event: e.ApplicationRegistered | e.ApplicationAttached | e.NodeRegistered,
    then: Callable[[c.Reply | c.Refuse], None] = lambda _result: None,
) -> None:
    """A call that must be refused if it is another's when the master takes the call in: one that
    slept does so late."""
    was_anothers = False

    def taken_in(call_id: int) -> e.MasterEvent:
        nonlocal was_anothers
        was_anothers = anothers()
        return replace(event, now=world.clock.now, call_id=call_id)

    def replied(result: c.Reply | c.Refuse) -> None:
        if isinstance(result, c.Reply) and was_anothers:
            world.oracle.violated(f"an impostor is admitted {claimed}")
        then(result)

    world.master.call(taken_in, replied)
