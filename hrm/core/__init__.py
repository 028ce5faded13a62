"""The decisions of HRM: sans-IO, deterministic, without a clock.

``MasterCore.handle(event) -> list[Command]`` and ``NodeCore.handle(event) -> list[Command]`` hold
every decision. Events are facts in the past tense and carry ``now`` (seconds since the epoch);
commands are in the imperative. The live daemons and the simulator interpret the commands.

The path of one request, in the order of the modules: ``messages.events`` (application asks) ->
``scheduling.scheduler`` (reads a snapshot of ``scheduling.shared_state``, a policy chooses by
``queue.estimate``) -> ``scheduling.negotiator`` (validates and commits) -> ``node.core`` (queues
the container on a ``queue.resource_unit``, whose rules start it) -> ``master.core`` (updates its
state, notifies the application).
"""
