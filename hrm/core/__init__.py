"""The brain of HRM: sans-IO, deterministic, without a clock.

``MasterCore.handle(event) -> list[Command]`` and ``NodeCore.handle(event) -> list[Command]`` hold
every decision. Events are facts in the past tense and carry ``now`` (seconds since the epoch);
commands are wishes in the imperative. The live daemons and the simulator interpret the commands.

The path of one request, in the order of the modules: ``events`` (application asks) -> ``scheduler``
(reads a snapshot of ``shared_state``, chooses by ``estimate``) -> ``negotiator`` (validates and
commits) -> ``node`` (queues the container on a ``resource_unit``, whose rules start it) ->
``master`` (hears, updates, tells the application).
"""
