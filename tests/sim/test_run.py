"""One run is a function of its seed; failures can be reproduced and reduced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hrm.cli.app import app
from hrm.core.master.node_registry import NodeRegistry
from hrm.core.vocabulary.partitioning import BindingMode
from hrm.sim.actors.policies import POLICIES
from hrm.sim.faults.plan import KINDS, TRAITS, Limits
from hrm.sim.faults.plan_generator import draw
from hrm.sim.run import run_plan, run_seed, shrink

SEEDS = (0, 7, 12, 40)


def test_one_seed_is_one_history() -> None:
    for seed in SEEDS:
        first, second = run_seed(seed), run_seed(seed)
        assert first.events > 50
        assert first.log_hash == second.log_hash
        assert first == second
    assert run_seed(1).log_hash != run_seed(2).log_hash


def test_the_history_does_not_depend_on_the_process() -> None:
    """Nor on the order of sets of strings, which differs between Python processes."""
    code = f"from hrm.sim.run import run_seed\nfor s in {SEEDS}: print(run_seed(s).log_hash)"
    expected = [run_seed(seed).log_hash for seed in SEEDS]
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.split() == expected


def test_a_run_without_faults_is_quiet() -> None:
    for seed in range(20):
        result = run_seed(seed, Limits(without=frozenset(KINDS)))
        assert result.violations == ()
        assert result.faults == {}
        too_large = {a.name for a in result.plan.applications if a.resources.vcores == 64}
        if "auto-binding" in result.plan.traits:
            # What fits the nodes that it requires, or the gang those that there are, may be
            # requested when their units are smaller.
            applications, outcomes = result.plan.applications, result.outcomes
            gangs = {a.name for a in applications if a.gang_min}
            too_large |= {x for x in gangs if "start together" in outcomes.get(x, "")}
            choosy = {a.name for a in applications if a.labels or a.spark}
            too_large |= {x for x in choosy if "but the largest node" in outcomes.get(x, "")}
        for name, outcome in result.outcomes.items():
            assert (outcome == "succeeded") != (name in too_large), (seed, name, outcome)


def test_what_is_left_out_is_left_out() -> None:
    plan = draw(3, Limits(nodes=2, applications=1, horizon_s=5.0, without=frozenset({"loss"})))
    assert (len(plan.nodes), len(plan.applications), plan.horizon_s) == (2, 1, 5.0)
    assert plan.rates["loss"] == 0.0
    assert all(fault.at_s < 5.0 for fault in plan.faults)
    assert plan.command() == (
        "hrm sim faults --seed 3 --nodes 2 --applications 1 --horizon 5 --without loss"
    )


def test_the_rest_of_a_plan_stays_when_a_kind_is_left_out() -> None:
    whole, part = draw(9), draw(9, Limits(without=frozenset({"master-crash", "delay"})))
    assert part.applications == whole.applications
    assert part.nodes == whole.nodes
    assert set(part.faults) == {f for f in whole.faults if f.kind != "master-crash"}


def test_the_rest_of_a_plan_stays_when_traits_are_left_out() -> None:
    """So that a kept seed means the same when a trait is added."""
    plain = frozenset(TRAITS)
    for seed in range(30):
        whole, part = draw(seed), draw(seed, Limits(without=plain))
        assert not part.traits
        assert not part.remotes
        assert all(node.hardware is None for node in part.nodes)
        assert part.policy == "min-wait"
        assert whole.faults == part.faults
        assert whole.rates == part.rates
        for trait in whole.traits:
            less = draw(seed, Limits(without=frozenset({trait}))).traits
            rest = tuple(x for x in whole.traits if x != trait)
            if "driver-share" in whole.traits and trait in ("driver-share", "submissions"):
                # It needs submissions, and displaces what changes the units of nodes.
                assert set(less) - set(rest) <= {"gpus", "auto-binding"}
                assert set(rest) - set(less) <= {"driver-share"}
            else:
                assert less == rest


def test_every_trait_is_drawn_and_shows() -> None:
    plans = [draw(seed) for seed in range(300)]
    assert {trait for plan in plans for trait in plan.traits} == set(TRAITS)
    policies = Counter(plan.policy for plan in plans)
    assert set(policies) == set(POLICIES)
    assert policies.most_common(1)[0][0] == "min-wait"
    nodes = [node for plan in plans for node in plan.nodes]
    assert {node.binding.mode for node in nodes if node.binding} == set(BindingMode)
    applications = [application for plan in plans for application in plan.applications]
    assert any(application.gang_min > 1 for application in applications)
    assert any(application.gpus for application in applications)
    assert any(application.hosts for application in applications)
    assert {len(plan.remotes) for plan in plans} == {0, 1, 2}


def test_a_failing_run_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeRegistry, "_close_rows", lambda *_: None)
    failing = next(r for r in (run_seed(seed) for seed in range(100)) if r.violations)
    small = shrink(failing)
    assert small.violations
    assert small.events <= failing.events
    assert len(small.plan.applications) <= len(failing.plan.applications)
    assert len(small.plan.limits.without) > 3, "most kinds of fault do not matter"
    assert run_plan(small.plan).violations == small.violations


def test_the_command_reports_in_json(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    words = ["sim", "faults", "--seed", "5", "--runs", "3", "--json", str(file)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    lines = done.stdout.strip().splitlines()
    assert lines[0].startswith("seed 5: ")
    summary = json.loads(lines[-1])
    assert {"runs", "violations", "faults", "events", "log_hash"} <= summary.keys()
    assert (summary["runs"], summary["violations"]) == (3, 0)
    assert json.loads(file.read_text()) == summary
    again = CliRunner().invoke(app, words)
    assert json.loads(again.stdout.strip().splitlines()[-1]) == summary


def test_the_command_shows_what_broke_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NodeRegistry, "_close_rows", lambda *_: None)
    seed = next(seed for seed in range(100) if run_seed(seed).violations)
    done = CliRunner().invoke(app, ["sim", "faults", "--seed", str(seed), "--shrink"])
    assert done.exit_code == 1
    assert "VIOLATION: " in done.stdout
    assert f"again: hrm sim faults --seed {seed}\n" in done.stdout
    assert "shrunk:" in done.stdout
    assert json.loads(done.stdout.strip().splitlines()[-1])["failed_seeds"] == [seed]


@pytest.mark.parametrize("words", [["--without", "earthquake"], ["--json", "/no/such/dir/f"]])
def test_bad_input_is_refused_before_anything_runs(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["sim", "faults", *words])
    assert done.exit_code == 1
    assert f"error: {words[0]} {words[1]}: no such " in done.stderr
    assert not done.stdout
