"""A contest for one kind of GPUs, by itself."""

from __future__ import annotations

from hrm.core.master.gpu_contest import Contest
from tests.core.test_gpu_share import GPU, gpus


def test_what_is_about_to_start_counts_for_the_share_of_its_application() -> None:
    """It waits at units for what the master gave up, and starts without another word of it."""
    cluster = gpus(2)
    has_three, has_none = cluster.submit(2, GPU), cluster.submit(0)
    cluster.settle()
    cluster.request(has_three, range(3, 13), GPU)
    cluster.request(has_none, range(1, 11), GPU)
    cluster.settle()
    shares = cluster.master.placement.gpu_shares
    (users,) = shares._kinds(cluster.now)
    five_free = [[5], [5]]

    contest = Contest(users, five_free, starting_mib=[1000, 0])

    assert [user.application_id for user in users] == [has_three, has_none]
    assert contest.shares_mib() == [4000, 4000], "two run, one is about to start, five are free"
    assert contest.starts() == [[1], [4]]
