"""Views of training jobs for tests of policies."""

from __future__ import annotations

import math
from typing import Any

from hrm.core.elasticity.elastic_job import ElasticityView, ElasticJobView, EpochSample
from hrm.core.vocabulary.model import ApplicationId


def job(name: str, **changes: Any) -> ElasticJobView:
    history = [EpochSample(e, 2.0 / e, 1.0 - 0.5 / e, 12.0, 2) for e in range(1, 11)]
    plain = ElasticJobView(
        job_id=ApplicationId(name), workers=2, workers_min=1, workers_max=4, epoch=10,
        epochs_max=100, loss=0.2, loss_max=2.0, accuracy=0.95, change=0.001, beta=0.0003,
        seconds=12.0, node_s=24.0, since_resize=10, below=0, warm=True, points=10.0, scale=1,
        tenant="", may_grow=True, may_shrink=True, history=history,
    )  # fmt: skip
    return plain._replace(**changes)


def view(*jobs: ElasticJobView, **changes: Any) -> ElasticityView:
    held = sum(each.workers for each in jobs)
    free = changes.pop("free", 2)
    plain = ElasticityView(100.0, jobs, 0, free, 0, held + free, 0)
    return plain._replace(**changes)


def flat(name: str, **changes: Any) -> ElasticJobView:
    return job(name, **{"change": 0.0, "below": 2, **changes})


def cold(name: str) -> ElasticJobView:
    return job(
        name, epoch=0, loss=math.nan, loss_max=-math.inf, accuracy=math.nan, change=math.nan,
        seconds=math.nan, node_s=0.0, warm=False, may_grow=False, may_shrink=False, history=[],
    )  # fmt: skip
