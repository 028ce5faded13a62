"""Applications that report what they train, at the master."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hrm.core.elasticity.beta_rule import BetaRule, Resize
from hrm.core.elasticity.elastic_job import ElasticityView
from hrm.core.master.entities import Application
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    Progress,
    Resources,
    TrainingReport,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit

SIZE = Resources(1, 10)
PROGRESS = Progress()


def learning(epoch: int) -> float:
    """It gains a hundredth an epoch."""
    return min(1.0, 0.01 * epoch)


def converged(epoch: int) -> float:
    return 0.9


class Trainings:
    """A cluster of ``cores``, or another one, and applications that report, one epoch a second."""

    def __init__(self, cores: int = 0, cluster: VirtualCluster | None = None) -> None:
        self.cluster = cluster or VirtualCluster([unit("n0", cores)])
        self.epochs: dict[ApplicationId, int] = {}

    def submit(self, executors: int, size: Resources = SIZE, **more: Any) -> ApplicationId:
        app = self.cluster.submit(executors, size, name=f"app-{len(self.epochs)}", **more)
        self.cluster.settle()
        self.epochs[app] = 0
        return app

    def report(
        self, app: ApplicationId, accuracy: float | None, loss: float = 0.5, **more: float
    ) -> None:
        self.epochs[app] += 1
        report = TrainingReport(
            epoch=int(more.get("epoch", self.epochs[app])),
            loss=loss,
            accuracy=accuracy,
            seconds=more.get("seconds", 1.0),
            epochs=int(more.get("epochs", 0)),
        )
        self.together(app, report)

    def together(self, app: ApplicationId, *reports: TrainingReport) -> None:
        self.cluster.advance(1.0)
        self.cluster.submit_to_master(
            e.ProgressReported(
                now=self.cluster.now, application_id=app, progress=PROGRESS, training=reports
            )
        )
        self.cluster.settle()

    def line(self, app: ApplicationId) -> str:
        return self.cluster.master.elastic.line(self.cluster.app(app))

    def limit(self, app: ApplicationId) -> int | None:
        return self.cluster.app(app).executors_max

    def keep_to_limit(self, app: ApplicationId) -> None:
        """As its AppMaster and Spark do: what waits is cancelled first, then the youngest end."""
        limit, waiting, running = self.limit(app), list[int](), list[int]()
        for x in self.cluster.app(app).containers.values():
            runs = x.state is ContainerState.RUNNING
            (running if runs else waiting).append(int(x.request.executor_id))
        if limit is not None:
            self.cluster.release(app, *sorted(waiting)[max(0, limit - len(running)) :])
            for executor in sorted(running)[limit:]:
                self.cluster.end_process(app, executor)
        self.cluster.settle()


def test_what_learns_no_more_gives_its_executors_to_what_waits() -> None:
    trainings = Trainings(cores=4)
    flat, late = trainings.submit(4), trainings.submit(3)
    assert trainings.cluster.states(late).get("running", 0) == 0
    limits = []
    for epoch in range(20):
        trainings.report(flat, converged(epoch))
        trainings.keep_to_limit(flat)
        limits.append(trainings.limit(flat))

    assert limits[:7] == [None] * 7, "it has reported too few to be judged"
    assert limits[-1] == 1, "one stays"
    assert sorted({x for x in limits if x}, reverse=True) == [3, 2, 1], "one at a time"
    assert trainings.cluster.states(late) == {"running": 3}
    assert trainings.cluster.states(flat) == {"running": 1}


def test_what_still_learns_gives_up_what_makes_it_hardly_faster() -> None:
    """Its epochs take the same time with three executors as with four."""
    trainings = Trainings(cores=4)
    app, _ = trainings.submit(4), trainings.submit(1)
    for epoch in range(14):
        trainings.report(app, learning(epoch))
        trainings.keep_to_limit(app)
    assert trainings.limit(app) == 3, "a fourth adds 0.36 of one while nothing else is known"
    line = trainings.cluster.master.elastic.line(trainings.cluster.app(app))
    assert line.endswith("may have 3 of the 4 executors it requests; another would add 0.00 of "
                         "the speed of one")  # fmt: skip


def test_what_is_free_while_nothing_waits_goes_back_to_what_learns() -> None:
    trainings = Trainings(cores=4)
    app, other = trainings.submit(4), trainings.submit(1)
    for epoch in range(12):
        trainings.report(app, converged(epoch))
        trainings.keep_to_limit(app)
    assert trainings.limit(app) == 3, "as many as another waits for"
    trainings.cluster.finish(other)
    for epoch in range(40):  # its learning rate has dropped
        trainings.report(app, 0.9 + 0.002 * epoch)

    assert trainings.limit(app) is None, "it has all that it requests"


def test_what_others_have_left_goes_back_to_what_learns_no_more() -> None:
    trainings = Trainings(cores=4)
    app, other = trainings.submit(4), trainings.submit(3)
    for epoch in range(20):
        trainings.report(app, converged(epoch))
        trainings.keep_to_limit(app)
    assert trainings.limit(app) == 1
    trainings.cluster.finish(other)
    limits = []
    for epoch in range(3):
        trainings.report(app, converged(epoch))
        limits.append(trainings.limit(app))
    assert limits[-1] is None, "it has epochs left, and the cluster is its own"
    assert limits[0] is None, "at once: each new one stops the epoch in which it starts"


def test_without_a_report_what_is_free_is_offered_from_time_to_time() -> None:
    trainings = Trainings(cores=4)
    app, other = trainings.submit(4), trainings.submit(3)
    for epoch in range(20):
        trainings.report(app, converged(epoch))
        trainings.keep_to_limit(app)
    trainings.cluster.finish(other)
    trainings.cluster.advance(trainings.cluster.master.master_state.bounds.elastic_period_s + 1.0)
    assert trainings.limit(app) is None


def test_the_first_to_be_given_up_is_one_that_runs() -> None:
    """Two applications request the whole cluster and hold a half of it each; a third has none."""
    trainings = Trainings(cores=6)
    flat, learns = trainings.submit(3), trainings.submit(3)
    late = trainings.submit(1)
    trainings.cluster.request(flat, range(4, 7), SIZE)
    for epoch in range(7):
        trainings.report(learns, learning(epoch))
        trainings.report(flat, converged(epoch))
    assert trainings.limit(flat) is None
    assert trainings.cluster.states(flat)["running"] == 3
    trainings.report(flat, converged(7))
    assert trainings.limit(flat) == 2, "not one of the three that it waits for"
    trainings.keep_to_limit(flat)
    assert trainings.cluster.states(late) == {"running": 1}


@pytest.mark.parametrize("apart", [False, True])
def test_what_others_want_beyond_what_they_have_is_worth_as_much_as_one_more(apart: bool) -> None:
    """Both want the whole cluster and have a half of it, be it because their queues are guaranteed
    that. The fourth executor of one that learns is not worth five times the third of the other."""
    trainings = Trainings(cores=6)
    halves = [spec_from(name, {"guaranteed": "50%"}) for name in ("root.a", "root.b")]
    trainings.cluster.change_queues(*halves, create=True)
    queues = ("root.a", "root.b") if apart else ("root.a", "root.a")
    flat = trainings.submit(3, queue=queues[0])
    learns = trainings.submit(6, queue=queues[1])
    trainings.cluster.request(flat, range(4, 7), SIZE)
    for epoch in range(20):
        trainings.report(learns, learning(epoch))
        trainings.report(flat, converged(epoch))
    assert trainings.limit(flat) is trainings.limit(learns) is None
    for app in (flat, learns):
        assert trainings.cluster.states(app)["running"] == 3


def test_executors_move_to_one_that_learns_and_has_few() -> None:
    """Its second adds two thirds of the speed of one, the tenth of the other a tenth."""
    trainings = Trainings(cores=11)
    flat, learns = trainings.submit(10), trainings.submit(6)
    assert trainings.cluster.states(learns)["running"] == 1
    for epoch in range(80):
        for app, accuracy in ((learns, learning(epoch)), (flat, converged(epoch))):
            seconds = 0.2 + 0.8 / trainings.cluster.states(app)["running"]
            trainings.report(app, accuracy, seconds=seconds)
            trainings.keep_to_limit(app)
    assert trainings.limit(learns) is None, "it takes what is free by itself"
    assert trainings.limit(flat) == trainings.cluster.states(flat)["running"] < 9
    has = trainings.cluster.states(learns)["running"]
    assert has == 11 - trainings.cluster.states(flat)["running"] > 2


def test_what_other_queues_keep_waits_too() -> None:
    """Two queues have the halves that they are guaranteed, and one of a third queue has nothing."""
    trainings = Trainings(cores=6)
    halves = [spec_from(name, {"guaranteed": "50%"}) for name in ("root.a", "root.b")]
    trainings.cluster.change_queues(*halves, spec_from("root.c", {}), create=True)
    flat = trainings.submit(3, queue="root.a")
    learns = trainings.submit(3, queue="root.b")
    late = trainings.submit(1, queue="root.c")
    trainings.cluster.settle()
    assert trainings.cluster.states(late) == {"pending": 1}
    for epoch in range(10):
        trainings.report(learns, learning(epoch))
        trainings.report(flat, converged(epoch))
        trainings.keep_to_limit(flat)
    assert trainings.limit(flat) == 2
    assert trainings.cluster.states(late)["running"] == 1


def test_a_queue_at_its_own_maximum_has_no_use_for_what_others_give_up() -> None:
    trainings = Trainings(cores=6)
    a, b = {"guaranteed": "50%"}, {"guaranteed": "50%", "maximum": "50%"}
    trainings.cluster.change_queues(spec_from("root.a", a), spec_from("root.b", b), create=True)
    flat = trainings.submit(3, queue="root.a")
    full = trainings.submit(6, queue="root.b")
    assert trainings.cluster.states(full) == {"running": 3, "pending": 3}
    for epoch in range(12):
        trainings.report(flat, converged(epoch))
    assert trainings.limit(flat) is None


@pytest.mark.parametrize("on_demand", [True, False])
def test_what_nobody_wants_it_keeps_unless_the_pool_is_to_shrink(on_demand: bool) -> None:
    trainings = Trainings(cores=4)
    trainings.cluster.master.elastic.policy = BetaRule(on_demand=on_demand)
    app = trainings.submit(4)
    for epoch in range(20):
        trainings.report(app, converged(epoch))
        trainings.keep_to_limit(app)
    assert trainings.limit(app) == (None if on_demand else 1)


def test_what_it_waits_for_itself_is_no_reason_to_take_executors() -> None:
    """It wants more than there is, and is alone."""
    trainings = Trainings(cores=4)
    app = trainings.submit(7)
    assert trainings.cluster.states(app)["running"] == 4
    assert trainings.cluster.states(app)["waiting"] == 3
    for epoch in range(20):
        trainings.report(app, converged(epoch))
    assert trainings.limit(app) is None


def test_epoch_times_are_of_the_executors_that_run() -> None:
    """It wants more than there is, and each report lowers what it may have, not what it has."""
    trainings = Trainings(cores=4)
    app, _ = trainings.submit(3), trainings.submit(7)
    more = trainings.submit(6)
    for epoch in range(30):
        trainings.report(app, learning(epoch))
        trainings.report(more, learning(epoch))
    assert set(trainings.cluster.master.elastic.core.jobs[app].paces) == {3}


def test_a_flood_of_reports_does_not_look_at_the_cluster_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainings = Trainings(cores=4)
    app = trainings.submit(2)
    elastic, looks = trainings.cluster.master.elastic, list[float]()
    look = elastic._capacity

    def counted(app: Application, now: float) -> None:
        looks.append(now)
        look(app, now)

    monkeypatch.setattr(elastic, "_capacity", counted)
    began_s = trainings.cluster.now
    for number in range(1_000):
        report = TrainingReport(epoch=number, loss=0.5, accuracy=0.5, seconds=0.001)
        trainings.cluster.submit_to_master(
            e.ProgressReported(
                now=began_s + number / 1_000,
                application_id=app,
                progress=PROGRESS,
                training=(report,) * 200,
            )
        )
    assert 5 <= len(looks) <= 11
    job = elastic.core.jobs[app]
    assert job.reports == 1_000, "each epoch counts once"


def test_what_still_learns_and_what_reports_nothing_is_not_touched() -> None:
    trainings = Trainings(cores=4)
    learns, silent = trainings.submit(2), trainings.submit(2)
    for epoch in range(30):
        trainings.report(learns, learning(epoch))

    assert trainings.limit(learns) is None
    assert trainings.limit(silent) is None
    line = trainings.cluster.master.elastic.line
    assert line(trainings.cluster.app(silent)) == ""
    assert "not below 0.0003; it may have 2 of the 2" in line(trainings.cluster.app(learns))


@pytest.mark.parametrize("gang", [2, 3])
def test_no_gang_is_broken_up(gang: int) -> None:
    trainings = Trainings(cores=4)
    app, _ = trainings.submit(4, gang_min=gang), trainings.submit(4)
    for epoch in range(30):
        trainings.report(app, converged(epoch))
        trainings.keep_to_limit(app)
    assert trainings.limit(app) == gang


def test_a_loss_alone_counts_too() -> None:
    trainings = Trainings(cores=4)
    flat, learns = trainings.submit(2), trainings.submit(2)
    trainings.submit(1)
    for epoch in range(20):
        trainings.report(flat, None, loss=2.0)
        trainings.report(learns, None, loss=2.0 - 0.1 * epoch)
    assert (trainings.limit(flat), trainings.limit(learns)) == (1, None)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"loss": math.nan}, "loss is nan"),
        ({"loss": math.inf}, "loss is inf"),
        ({"accuracy": 1.5}, "report a fraction"),
        ({"accuracy": math.nan}, "accuracy is nan"),
        ({"epoch": 3}, "came after epoch"),
    ],
)
def test_a_report_that_is_none_changes_nothing_and_is_explained(
    stated: dict[str, float], says: str
) -> None:
    trainings = Trainings(cores=4)
    app = trainings.submit(4)
    for epoch in range(7):
        trainings.report(app, converged(epoch))
    accuracy = stated.pop("accuracy", 0.9)
    for _ in range(20):
        trainings.report(app, accuracy, **stated)

    assert trainings.limit(app) is None
    line = trainings.cluster.master.elastic.line(trainings.cluster.app(app))
    assert line.startswith("its latest report of its training does not count")
    assert says in line


def test_what_a_driver_counts_is_refused_in_its_own_numbers() -> None:
    trainings = Trainings(cores=4)
    app = trainings.submit(4)
    trainings.report(app, 0.5, epoch=0)
    trainings.report(app, 0.5, epoch=0)
    assert trainings.line(app).endswith("epoch 0 came after epoch 0: report numbers that grow")
    trainings.report(app, 0.5, epoch=6, epochs=5)
    assert trainings.line(app).endswith("is 6: report one from 0 to 5, or state more epochs")
    trainings.report(app, 0.5, epoch=6, epochs=100)
    assert "does not count" not in trainings.line(app), "it has stated more"
    trainings.report(app, 0.5, epoch=100)
    assert "does not count" not in trainings.line(app), "and need not repeat it"
    trainings.report(app, 2.0, epoch=101)
    latest = trainings.cluster.app(app).training
    assert latest is not None
    assert (latest.epoch, latest.accuracy) == (100, 0.5), "shown is what counts"


@pytest.mark.parametrize(
    ("loss", "counts"), [(-120.5, False), (0.0, True), (5e-324, True), (1e308, True)]
)
def test_a_loss_below_0_needs_an_accuracy_and_the_reason_says_so(loss: float, counts: bool) -> None:
    trainings = Trainings(cores=4)
    app = trainings.submit(4)
    trainings.report(app, None, loss=loss)
    if counts:
        assert "does not count" not in trainings.line(app)
        return
    assert "loss is -120.5, and without an accuracy one below 0" in trainings.line(app)
    assert trainings.line(app).endswith("report an accuracy, too, a fraction from 0 to 1")
    trainings.report(app, 0.5, loss=loss)
    assert "does not count" not in trainings.line(app)


def gain(*stray: float, **more: float) -> float:
    """An epoch, of a model whose loss falls from 2, with ``stray`` ones after the third epoch."""
    trainings = Trainings(cores=4)
    app = trainings.submit(4)
    for epoch in range(24):
        trainings.report(app, None, loss=2.0 - 0.05 * epoch)
        for loss in stray if epoch == 2 else ():
            trainings.report(app, None, loss=loss, **more)
    return trainings.cluster.master.elastic.core.jobs[app].trend.change


def test_a_loss_that_does_not_count_leaves_no_trace_and_one_astray_none_that_lasts() -> None:
    assert gain(1e300, epoch=1) == gain(), "it was refused: epoch 1 has been reported"
    assert gain(1e308) == pytest.approx(gain(), rel=1e-3)
    assert gain() == pytest.approx(0.05 / 1.95)


@pytest.mark.parametrize("first", [0, 1, 5])
def test_models_that_share_a_progress_report_are_told_apart(first: int) -> None:
    """The last epoch of one model and the first ones of the next arrive together."""
    trainings = Trainings(cores=4)
    app, _ = trainings.submit(4), trainings.submit(8)
    for epoch in range(14):
        trainings.report(app, converged(epoch), epoch=first + epoch)
        trainings.keep_to_limit(app)
    assert trainings.limit(app) == 1
    numbers = (first + 14, first, first + 1)
    trainings.together(app, *(TrainingReport(epoch=x, loss=0.5, accuracy=0.1) for x in numbers))

    assert trainings.limit(app) is None, "another model has no limit yet"
    job = trainings.cluster.master.elastic.core.jobs[app]
    assert (job.reports, job.epoch) == (2, first + 2)
    assert "has reported too few epochs" in trainings.line(app)


def limited() -> tuple[Trainings, ApplicationId]:
    """A converged training with one executor of four; others want more than there is."""
    trainings = Trainings(cores=4)
    app, _ = trainings.submit(4), trainings.submit(8)
    for epoch in range(14):
        trainings.report(app, converged(epoch))
        trainings.keep_to_limit(app)
    assert trainings.limit(app) == 1
    return trainings, app


def test_what_trains_no_more_has_its_executors_again() -> None:
    """It scores and writes what it has learned, which is no training, and says nothing of it."""
    trainings, app = limited()
    trainings.cluster.advance(60.0)
    assert trainings.limit(app) is not None
    trainings.cluster.advance(90.0)
    assert trainings.limit(app) is None


@pytest.mark.parametrize("first", [0, 1])
def test_another_model_of_an_application_begins_without_the_limit_of_the_last(first: int) -> None:
    trainings, app = limited()
    trainings.report(app, 0.1, epoch=first)
    assert trainings.limit(app) is None
    for epoch in range(2, 8):
        trainings.report(app, learning(epoch), epoch=first + epoch)
    assert trainings.limit(app) is None, "it has reported too few to be judged again"


def test_a_stream_is_not_elastic_and_one_that_becomes_a_stream_is_no_more() -> None:
    trainings = Trainings(cores=4)
    app, _ = trainings.submit(4), trainings.submit(4)
    for epoch in range(12):
        trainings.report(app, converged(epoch))
    assert trainings.limit(app) is not None
    trainings.cluster.submit_to_master(
        e.WorkloadClassObserved(
            now=trainings.cluster.now,
            application_id=app,
            workload_class=WorkloadClass.STREAM,
            evidence="a query",
        )
    )
    trainings.report(app, 0.9)
    assert trainings.limit(app) is None
    assert not trainings.cluster.master.elastic.core.jobs


def test_an_end_leaves_nothing_behind() -> None:
    trainings = Trainings(cores=4)
    app = trainings.submit(2)
    trainings.report(app, 0.5)
    trainings.cluster.finish(app)
    assert not trainings.cluster.master.elastic.core.jobs
    trainings.report(app, 0.5)
    trainings.cluster.advance(20)
    assert not trainings.cluster.master.elastic.core.jobs, "it has ended"


def test_whatever_a_policy_proposes_the_limits_hold() -> None:
    class Wild:
        """Proposes what may not be."""

        name = "wild"

        def __init__(self) -> None:
            self.asked = 0

        def propose(self, view: ElasticityView) -> Resize | None:
            self.asked += 1
            deltas = (-1, 1, -2, 5)
            return Resize(self.asked % (len(view.jobs) + 1), deltas[self.asked % 4])

    trainings = Trainings(cores=4)
    trainings.cluster.master.elastic.policy = Wild()
    apps = [trainings.submit(2), trainings.submit(2)]
    for epoch in range(40):
        for app in apps:
            trainings.report(app, learning(epoch))
            limit = trainings.limit(app)
            assert limit is None or limit == 1
