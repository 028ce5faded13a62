"""Queues and rules of ``hrm.toml``: what is read, and what is said of what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm import config
from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import Amount, spec_from
from hrm.errors import InvalidConfig

EXAMPLE = """
[master]
port = 7

[queues."root.etl"]
guaranteed = "25%"
maximum = { cores = 64, memory = "256g" }
order = "fair"

[queues."root.ml.train"]
weight = 2

[[queue_rules]]
tag = "nightly"
queue = "root.etl"

[[queue_rules]]
user = "*"
queue = "root.users.{user}"
"""


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "its own.toml"
    path.touch()
    monkeypatch.setenv("HRM_CONFIG", str(path))
    return path


def test_queues_and_rules_are_read_in_their_order(toml: Path) -> None:
    toml.write_text(EXAMPLE)
    stated = config.load_queues()
    etl, train = stated.specs
    assert (etl.name, etl.order, etl.guaranteed[0]) == ("root.etl", "fair", Amount(0.25, True))
    assert (train.name, train.weight) == ("root.ml.train", 2)
    assert stated.rules == (
        QueueRule("tag", "nightly", "root.etl"),
        QueueRule("user", "*", "root.users.{user}"),
    )
    assert stated.names == {"root.etl", "root.ml.train"}
    assert not stated.asks_groups
    assert config.load(config.MasterSettings).port == 7


def test_what_was_observed_of_queues_fades_in_a_second_at_least(toml: Path) -> None:
    toml.write_text("[master]\nqueue_fairness_half_life_s = 1")
    assert config.load(config.MasterSettings).queue_fairness_half_life_s == 1
    toml.write_text("[master]\nqueue_fairness_half_life_s = 0.9")
    with pytest.raises(InvalidConfig, match="queue_fairness_half_life_s"):
        config.load(config.MasterSettings)


def test_other_daemons_read_a_file_with_queues(toml: Path) -> None:
    toml.write_text(EXAMPLE)
    config.load(config.AgentSettings)


def test_without_a_file_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HRM_HOME", str(tmp_path))
    monkeypatch.delenv("HRM_CONFIG", raising=False)
    assert config.load_queues() == config.QueueConfig()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[queues."root.a"]\nwieght = 2\n',
            """{toml}, table [queues."root.a"]: queue root.a: 'wieght' is not known; known are""",
        ),
        (
            '[queues."a"]\n',
            """{toml}, table [queues."a"]: the queue 'a' does not begin with root, as in""",
        ),
        (
            "[queues.root.a]\nweight = 2\n",
            '[queues."root"]: the name of a queue stands in quotes, since it has dots: '
            '[queues."root.team"]',
        ),
        ("queues = 3\n", "{toml}: queues has a table for each queue"),
        ("[queues]\nroot = 3\n", "the name of a queue stands in quotes"),
        ("[queue_rules]\nuser = 'a'\n", "{toml}: a rule is a table of its own: [[queue_rules]]"),
        (
            "[[queue_rules]]\nuser = 'ana'\n",
            "{toml}, rule 1 of [[queue_rules]]: a rule is a table as",
        ),
        (
            '[queues."root.a"]\nguaranteed = "60%"\n[queues."root.b"]\nguaranteed = "60%"\n',
            "{toml}, tables [queues]: the queues below root are guaranteed 120% of its cores",
        ),
        ("[queue]\n", "unknown table [queue] (did you mean [queues]?); HRM's tables are"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(toml: Path, text: str, expected: str) -> None:
    toml.write_text(text)
    with pytest.raises(InvalidConfig) as refusal:
        config.load_queues()
    assert expected.format(toml=toml) in refusal.value.message


def test_all_problems_come_at_once(toml: Path) -> None:
    toml.write_text('[queues."root.a"]\nweight = 0\n[queues."b"]\n[[queue_rules]]\n')
    with pytest.raises(InvalidConfig) as refusal:
        config.load_queues()
    assert refusal.value.message.count(str(toml)) == 3


def test_the_file_counts_over_what_is_stored(toml: Path) -> None:
    toml.write_text('[queues."root.a"]\nguaranteed = "10%"\n')
    stated = config.load_queues()
    stored = [spec_from("root.a", {"guaranteed": "90%"}), spec_from("root.b", {"weight": 3})]
    tree = stated.tree(stored)
    assert [spec.name for spec in tree.stated] == ["root.a", "root.b"]
    assert tree.stated[0].guaranteed[0] == Amount(0.1, True)


def test_what_is_stored_and_contradicts_the_file_is_named(toml: Path) -> None:
    toml.write_text('[queues."root.a"]\nguaranteed = "60%"\n')
    stored = [spec_from("root.b", {"guaranteed": "60%"})]
    with pytest.raises(InvalidConfig) as refusal:
        config.load_queues().tree(stored)
    assert "guaranteed 120% of its cores together" in refusal.value.message
    assert '[queues."root.b"] stand in the master\'s store alone' in refusal.value.message
