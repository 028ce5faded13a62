"""The way of a learned policy from shadow to on: the tasks that it is measured with, and a row."""

from __future__ import annotations

from benchmarks.pipelines import rollout
from benchmarks.pipelines.rollout import Stage, chains, table
from hrm.pipelines.sim import profiles as tables


def test_chains_have_the_steps_of_the_pipelines_of_training() -> None:
    _, pipelines = chains()
    trained = {
        tuple(step.devices for step in one.subtasks)
        for one in tables.load().pipelines
        if one.name != "object-detection"
    }
    made = {tuple(step.devices for step in one.spec("m:p").subtasks) for one in pipelines}
    assert made == trained


def test_a_chain_returns_what_is_computed_without_it() -> None:
    module, pipelines = chains()
    for pipeline in pipelines:
        steps = len(pipeline.steps)
        result = pipeline.run_here({"number": 77, "seconds": [0.0] * steps})
        assert result["number"] == module.result_of(77, steps) != module.result_of(78, steps)


def test_a_row_has_the_reasons_and_what_went_wrong() -> None:
    stage = Stage(
        mode="on", tasks=200, asked=203, learned=180, shadowed=0, agreed=0,
        fallbacks={"disagreement": 22, "over-budget": 1}, ratio_p95=None, reference_p95=2.5,
        response_p50_s=1.0, response_p95_s=2.0, wrong=0, failed=0, lost=1, twice=0,
    )  # fmt: skip
    assert not stage.good
    row = table([stage]).splitlines()[-1]
    assert "22 disagreement, 1 over-budget | - | 2.50" in row
    assert rollout.TASKS % len(rollout.MODES) == 0
