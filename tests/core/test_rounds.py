"""The order in which schedulers look and commit: streams at once, batch one round after another."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hrm.core.master.rounds import AT_ONCE_MAX, RoundSequencer
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.vocabulary.model import ApplicationId, WorkloadClass

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
NOW = 100.0
APP = ApplicationId("app")
REQUEST = e.ContainersRequested(now=NOW, application_id=APP, requests=())
NOTHING = e.Ticked(now=NOW)


class Core:
    """What the sequencer needs of a core; ``streams``: schedulers for which a stream waits."""

    def __init__(self) -> None:
        self.streams: set[str] = set()
        self.placement = SimpleNamespace(has_stream=lambda name, now: name in self.streams)
        app = SimpleNamespace(scheduler="a")
        self.master_state = SimpleNamespace(applications={APP: app})


def sequencer(core: Core | None = None) -> RoundSequencer:
    plays: Any = core or Core()
    return RoundSequencer(plays)


def proposal(scheduler: str, workload_class: WorkloadClass = BATCH) -> Proposal:
    return Proposal(scheduler, APP, workload_class, (), 0)


def words(event: e.MasterEvent | None) -> str:
    match event:
        case e.SchedulerWoken():
            return f"{event.scheduler} looks"
        case e.ClaimsProposed():
            return f"{event.proposal.scheduler} commits"
    return ""


def test_the_next_scheduler_looks_when_the_one_before_it_has_committed() -> None:
    rounds = sequencer()
    rounds.wake("a", NOW)
    rounds.wake("b", NOW)

    assert words(rounds.step(NOW)) == "a looks"
    rounds.propose(proposal("a"))
    assert words(rounds.step(NOW)) == "a commits"
    assert words(rounds.step(NOW)) == "b looks"
    assert not rounds.is_due


def test_a_round_that_proposes_nothing_is_over() -> None:
    rounds = sequencer()
    rounds.wake("a", NOW)
    rounds.wake("b", NOW)

    assert [words(rounds.step(NOW)) for _ in range(3)] == ["a looks", "b looks", ""]


def test_a_round_that_is_due_is_begun_once_and_may_be_due_again_once_it_has_begun() -> None:
    rounds = sequencer()
    rounds.wake("a", NOW)
    rounds.wake("a", NOW)

    assert words(rounds.step(NOW)) == "a looks"
    assert not rounds.is_due
    rounds.wake("a", NOW)
    assert words(rounds.step(NOW)) == "a looks"


def test_batch_does_nothing_in_the_turn_that_made_it_due() -> None:
    rounds = sequencer()
    rounds.taken(NOTHING, NOW)
    rounds.wake("a", NOW)
    rounds.propose(proposal("b"))

    assert rounds.at_once(NOW) is None
    assert rounds.is_due


def test_a_stream_looks_and_commits_in_one_turn_ahead_of_all_batch() -> None:
    core = Core()
    rounds = sequencer(core)
    rounds.wake("b", NOW)
    rounds.propose(proposal("c"))
    core.streams = {"a"}
    rounds.taken(REQUEST, NOW)
    rounds.wake("a", NOW)

    assert words(rounds.at_once(NOW)) == "a looks"
    rounds.propose(proposal("a", STREAM))
    assert words(rounds.at_once(NOW)) == "a commits"
    assert rounds.at_once(NOW) is None
    assert [words(rounds.step(NOW)) for _ in range(2)] == ["c commits", "b looks"]


def test_a_request_of_a_stream_makes_a_round_that_is_due_for_batch_hurry() -> None:
    core = Core()
    rounds = sequencer(core)
    rounds.wake("b", NOW)
    rounds.wake("a", NOW)
    core.streams = {"a"}

    rounds.taken(REQUEST, NOW)

    assert words(rounds.at_once(NOW)) == "a looks"
    assert [words(rounds.step(NOW)) for _ in range(2)] == ["b looks", ""]


def test_one_that_is_due_for_batch_and_woken_for_a_stream_looks_at_once() -> None:
    core = Core()
    rounds = sequencer(core)
    for name in "ba":
        rounds.wake(name, NOW)
    rounds.taken(NOTHING, NOW)
    core.streams.add("a")

    rounds.wake("a", NOW)
    rounds.wake("a", NOW)

    assert words(rounds.at_once(NOW)) == "a looks"
    assert [words(rounds.step(NOW)) for _ in range(2)] == ["b looks", ""]


def test_a_stream_whose_time_has_come_is_the_next_step() -> None:
    core = Core()
    rounds = sequencer(core)
    rounds.propose(proposal("b"))
    core.streams = {"a"}
    rounds.wake("a", NOW)

    assert [words(rounds.step(NOW)) for _ in range(2)] == ["a looks", "b commits"]


def test_a_scheduler_whose_stream_is_gone_waits_its_turn() -> None:
    core = Core()
    rounds = sequencer(core)
    rounds.wake("b", NOW)
    core.streams = {"a"}
    rounds.wake("a", NOW)
    core.streams = set()

    rounds.taken(NOTHING, NOW)

    assert rounds.at_once(NOW) is None
    assert [words(rounds.step(NOW)) for _ in range(2)] == ["b looks", "a looks"]


def test_streams_leave_the_loop_to_others_after_many_steps() -> None:
    core = Core()
    rounds = sequencer(core)
    core.streams = {str(number) for number in range(AT_ONCE_MAX + 1)}
    for number in range(AT_ONCE_MAX + 1):
        rounds.wake(str(number), NOW)
    rounds.taken(NOTHING, NOW)

    served = [rounds.at_once(NOW) for _ in range(AT_ONCE_MAX + 1)]

    assert served[-1] is None
    assert None not in served[:-1]
    assert words(rounds.step(NOW)) == f"{AT_ONCE_MAX} looks"
    assert not rounds.is_due


def test_a_stream_whose_scheduler_has_chosen_is_committed_in_the_same_turn() -> None:
    core = Core()
    rounds = RoundSequencer(core, at_once_max=1)  # type: ignore[arg-type]
    core.streams = {"a"}
    rounds.wake("a", NOW)
    rounds.wake("b", NOW)
    rounds.taken(NOTHING, NOW)

    assert words(rounds.at_once(NOW)) == "a looks"
    rounds.propose(proposal("a", STREAM))
    assert words(rounds.at_once(NOW)) == "a commits", "or b would choose on a stale snapshot"
    assert rounds.at_once(NOW) is None
    assert words(rounds.step(NOW)) == "b looks"


_STEPS = st.tuples(st.sampled_from(["wake", "stream", "turn", "request"]), st.sampled_from("abc"))


@given(st.lists(_STEPS, max_size=60))
def test_no_round_is_lost_or_doubled_and_batch_rounds_do_not_overlap(
    steps: list[tuple[str, str]],
) -> None:
    core = Core()
    rounds = sequencer(core)
    due: Counter[str] = Counter()
    open_: list[str] = []

    def happens(event: e.MasterEvent | None) -> None:
        if isinstance(event, e.SchedulerWoken):
            name = event.scheduler
            due[name] -= 1
            stream = name in core.streams
            assert stream or not open_, "a batch round is open"
            core.streams.discard(name)
            rounds.propose(proposal(name, STREAM if stream else BATCH))
            if not stream:
                open_.append(name)
        elif isinstance(event, e.ClaimsProposed) and event.proposal.workload_class is BATCH:
            open_.remove(event.proposal.scheduler)

    for what, name in steps:
        if what == "stream":
            core.streams.add(name)
        elif what == "turn":
            happens(rounds.step(NOW))
        else:
            due[name] = 1
            rounds.wake(name, NOW)
        if what == "request":
            rounds.taken(REQUEST, NOW)
            while (event := rounds.at_once(NOW)) is not None:
                happens(event)
            assert not any(due[x] for x in core.streams & {"a"}), "a stream was not served"
    while rounds.is_due:
        happens(rounds.step(NOW))
    assert not +due, "a round was lost"
    assert not -due, "a round was begun twice"
    assert not open_


def test_streams_that_fill_every_turn_leave_batch_its_step() -> None:
    core = Core()
    core.streams = {"a"}
    rounds = sequencer(core)
    rounds.wake("b", NOW)
    steps = []

    for _ in range(3):
        rounds.taken(NOTHING, NOW)
        rounds.wake("a", NOW)
        while (event := rounds.at_once(NOW)) is not None:
            if isinstance(event, e.SchedulerWoken):
                rounds.propose(proposal("a", STREAM))
            rounds.wake("a", NOW)  # and there is always another stream that waits
        steps.append(words(rounds.step(NOW)))
        if steps[-1] == "b looks":
            rounds.propose(proposal("b"))

    assert steps[:2] == ["b looks", "b commits"]
    assert steps[2].startswith("a ")
