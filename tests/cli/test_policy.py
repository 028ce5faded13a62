"""hrm policy: what it shows of prepared replies, what it requests, and a real small training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from hrm.pipelines.policies.cluster import load
from hrm.policies import model_files
from hrm.v1.policy_pb2 import LearnedPolicy
from tests.cli.conftest import FakeMaster
from tests.cli.fake_policies import FakePolicies, candidate, of_agent

Run = Callable[..., Result]


@pytest.fixture
def policies(master: FakeMaster) -> FakePolicies:
    return master.policies


def test_show_states_what_is_trusted_and_why_not_more(hrm: Run, policies: FakePolicies) -> None:
    result = hrm("policy", "show")
    assert result.exit_code == 0, result.stderr
    for part in (
        "ldwp-set (cluster) is canary-10, with model ldwp-set-3; else ect decides",
        "1000 decisions requested, 92 made, 400 in shadow (375 proposed, 80% agreed)",
        "fell back: unknown-type 7, over-budget 3",
        "last: unknown-type: it has never seen speech [x]",
        "disabled for another 12 s",
        "decides in 0.21 ms (p50), 0.80 ms (p99)",
        "response over expectation, p95: 1.31; ect's: 1.25",
        "rolled back 9",
        "s ago: watchdog: it was worse",
        "hrm policy set ldwp-set canary-1 tries it again",
        "model ldwp-set-3: /m/ldwp-set-3.npz",
    ):
        assert part in result.stdout


def test_show_as_json_is_the_whole_response(hrm: Run, policies: FakePolicies) -> None:
    held = json.loads(hrm("policy", "show", "ldwp-set", "--output", "json").stdout)
    assert held["policies"][0]["fallbacks"] == {"over-budget": "3", "unknown-type": "7"}
    assert policies.requests[-1].policy == "ldwp-set"


def test_shadow_shows_both_decisions(hrm: Run, policies: FakePolicies) -> None:
    lines = hrm("policy", "shadow", "ldwp-set").stdout.splitlines()
    assert lines[1].split() == ["task-1", "no", "n1:", "first", "n2:", "Q", "1"]
    assert lines[2].split()[:2] == ["task-2", "-"], "what proposed nothing does not disagree"
    assert lines[2].endswith("- (fault: x)")
    assert policies.requests[-1].records


def test_set_asks_for_the_mode(hrm: Run, policies: FakePolicies) -> None:
    assert "is canary-50" in hrm("policy", "set", "ldwp-set", "canary-50").stdout
    request = policies.requests[-1]
    assert (request.policy, request.mode) == ("ldwp-set", "canary-50")


def test_nothing_to_show_is_reported(hrm: Run, policies: FakePolicies) -> None:
    policies.empty = True
    result = hrm("policy", "show")
    assert (result.exit_code, result.stdout.strip()) == (0, "")
    assert "no learned policy is in use" in result.stderr
    assert "elasticity_policy" in result.stderr
    assert "hrm policy set ldwp-set shadow" in hrm("policy", "shadow", "ldwp-set").stderr
    failed = hrm("policy", "show", "nobody")
    assert (failed.exit_code, "no learned policy" in failed.stderr) == (1, True)


def test_a_policy_without_a_model_says_what_that_means_and_how_to_make_one(
    hrm: Run, policies: FakePolicies
) -> None:
    policies.one = LearnedPolicy(
        policy="rlpto", kind="elasticity", heuristic="speed-up", model="none", mode="shadow",
        last="there are no weights for rlpto in /m",
    )  # fmt: skip
    shown = " ".join(hrm("policy", "show").stdout.split())
    assert "without a model speed-up decides alone; hrm policy train rlpto makes one" in shown
    assert "there are no weights for rlpto in /m" in shown
    policies.one.model = "rlpto-1"
    assert "without a model" not in hrm("policy", "show").stdout


def test_train_writes_a_model(hrm: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    out = tmp_path / "ldwp-set-4.npz"
    result = hrm(
        "policy", "train", "ldwp-set", "--out", str(out), "--version", "4", "--output", "json",
        "--environment", "tests.learn.queueing:Queueing", "--options", "tasks=100",
        "--rounds", "1", "--traces", "2", "--epochs", "1", "--validation-seeds", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["model"] == "ldwp-set-4"
    model = model_files.read(out, kind="ldwp-set")
    assert load("ldwp-set", rng=np.random.default_rng(0), model=model).name == "ldwp-set"


def test_train_says_what_rlpto_came_to(
    hrm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    monkeypatch.setattr("hrm.learn.ppo.VALIDATION_EPISODES", range(900_000, 900_001))
    out = tmp_path / "rlpto-2.npz"
    result = hrm(
        "policy", "train", "rlpto", "--out", str(out), "--version", "2",
        "--decisions", "64", "--round", "64", "--epochs", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "rlpto-2 in" in result.stdout
    assert "of the beta rule's on validation" in " ".join(result.stdout.split())
    assert model_files.read(out, kind="rlpto").version == 2


def test_train_states_what_is_wrong(hrm: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    assert "name one of ldwp, ldwp-set, rlpto" in hrm("policy", "train", "ect").stderr
    log = str(tmp_path / "none.npz")
    assert "keeps no log" in hrm("policy", "train", "ldwp", "--from-shadow", log).stderr
    assert "no log of placements" in hrm("policy", "train", "--from-shadow", log).stderr
    result = hrm("policy", "train", "ldwp-set", "--environment", "nowhere:x")
    assert result.exit_code == 1
    assert "error: environment 'nowhere:x'" in result.stderr


def test_policies_of_nodes_stand_by_their_node(hrm: Run, policies: FakePolicies) -> None:
    policies.nodes = ["n1", "n2"]
    lines = hrm("policy", "show").stdout.splitlines()
    assert lines[0].startswith("iawp (node n1) is shadow, with model m; else pats decides")
    assert "iawp (node n2) is shadow" in "\n".join(lines)
    output = hrm("policy", "set", "iawp", "on").stdout
    assert "iawp (node) is ordered to mode 'on' on 2 nodes: n1, n2" in output
    assert "hrm policy show iawp" in output
    assert "nodes report counters alone" in hrm("policy", "shadow", "iawp").stderr
    policies.nodes = []
    policies.one = of_agent(node="n3")
    assert "dqngpu-ddqn (shared-gpu, node n3) is on" in hrm("policy", "show").stdout
    assert "nodes report counters alone" in hrm("policy", "shadow", "dqngpu-ddqn").stderr
    policies.one = of_agent(nodes=["n3"])
    output = hrm("policy", "set", "dqngpu-ddqn", "on").stdout
    assert "dqngpu-ddqn (shared-gpu) is ordered to mode 'on' on 1 node: n3" in output
    policies.nodes = [f"n{number}" for number in range(20)]
    assert "n7 and 12 more" in hrm("policy", "set", "iawp", "on").stdout


def test_a_candidate_for_placement_is_compared_with_the_policy_in_force(
    hrm: Run, policies: FakePolicies
) -> None:
    policies.one = candidate(ratio_mean=1.25, ratio_p95=3.5, reference_mean=1.0, reference_p95=2.0)
    lines = hrm("policy", "show", "most-memory").stdout.splitlines()
    assert lines[0].startswith("most-memory (placement) is canary-10, from lean:MostMemory; else")
    assert "containers' wait over expectation, mean: 1.25, p95 3.50 (40 by most-memory);" in (
        " ".join(line.strip() for line in lines)
    )
    assert "1.00, p95 2.00 (460 by min-wait)" in " ".join(line.strip() for line in lines)
    policies.one = candidate(reference_mean=1.0, reference_p95=2.0)
    assert "mean: - (40 by most-memory); 1.00, p95 2.00 (460" in " ".join(
        line.strip() for line in hrm("policy", "show").stdout.splitlines()
    )


def test_what_a_candidate_would_have_placed_is_shown_by_application(
    hrm: Run, policies: FakePolicies
) -> None:
    policies.one = candidate()
    policies.one.records.add(
        key="app-1-0001", heuristic="2 at n1/cpu", learned="2 at n2/cpu", same=False
    )
    lines = hrm("policy", "shadow", "most-memory").stdout.splitlines()
    assert lines[0].split() == ["APPLICATION", "SAME", "DONE", "LEARNED"]
    assert lines[1].split()[:5] == ["app-1-0001", "no", "2", "at", "n1/cpu"]
