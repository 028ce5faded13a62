"""A default is defined in one place: where two parts of HRM need it, one gets it from the other."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import hrm
from hrm import address, config
from hrm.cli.cluster import up
from hrm.core.appmaster.appmaster_limits import AppMasterLimits
from hrm.core.messages.submissions import SubmissionBounds
from hrm.core.vocabulary.bounds import BOUNDS, SCHEDULERS, AutoBindingRules, Bounds
from hrm.core.vocabulary.partitioning import BindingMode, Partitioning
from hrm.pipelines.core.cluster import ClusterBounds
from hrm.pipelines.policies import cluster, corun
from hrm.spark import appmaster
from hrm.spark.hrm_settings import OWN_SETTINGS, SPARK_SETTINGS

HERE = Path(hrm.__file__).parent
SETTINGS = (config.MasterSettings, config.AgentSettings, config.SchedulerSettings)
OF_THE_CORE: list[tuple[Any, Any, dict[str, str]]] = [
    (config.MasterSettings, Bounds, {}),
    (config.MasterSettings, SubmissionBounds, {}),
    (config.AgentSettings, Bounds, {}),
    (
        config.AgentSettings,
        AutoBindingRules,
        {f"auto_binding_{x.name}": x.name for x in fields(AutoBindingRules)},
    ),
    (
        config.AgentSettings,
        Partitioning,
        {"gpu_bound_cores": "bound_cores", "cpu_reserve_cores": "reserve_cores"},
    ),
]
EACH_ITS_OWN = {
    "connections_max": "a master has many, an agent few, a client of pipelines as it needs",
    "reconnect_delay_max_s": "an agent's, a scheduler's",
    "pipeline_policy": "a cluster's and a node's, which are of different kinds",
    "name": "of policies and drivers, which are no settings",
    "memory_mib": "of invented machines and containers",
    "master": "the name of a part of the simulator",
    "stop_grace_s": "of the master's own server",
    "cpu_limit": "of drivers of isolation, which are made by the setting alone",
    "driver_share": "a reason to wait, by that name",
    "mps": "a way to share a GPU, by that name",
    "schedulers": "of virtual clusters, where tests are to meet what several do",
}
"""Settings whose names have other defaults elsewhere, and what these are of."""


def _copies_of_defaults() -> list[tuple[str, str, Any, Any]]:
    found = []
    for settings, core, renamed in OF_THE_CORE:
        defaults = {x.name: x.default for x in fields(core) if x.default is not MISSING}
        for name, field in settings.model_fields.items():
            other = renamed.get(name, name)
            if other in defaults:
                found.append((settings.__name__, name, field.default, defaults[other]))
    return found


@pytest.mark.parametrize(
    ("settings", "name", "default", "of_the_core"), _copies_of_defaults(), ids=lambda x: str(x)
)
def test_a_setting_that_the_core_knows_has_the_cores_default(
    settings: str, name: str, default: Any, of_the_core: Any
) -> None:
    assert default == of_the_core
    assert type(default) is type(of_the_core)
    assert name not in _literals(HERE / "config"), "refer to the core's"


def test_what_copies_the_core_is_found() -> None:
    found = {name for _, name, _, _ in _copies_of_defaults()}
    assert {"node_timeout_s", "driver_lease_s", "stop_grace_s", "auto_binding_window"} <= found
    for settings, core, renamed in OF_THE_CORE:
        assert set(renamed) <= set(settings.model_fields)
        assert set(renamed.values()) <= {x.name for x in fields(core)}


def test_no_default_is_written_twice() -> None:
    names = {name for settings in SETTINGS for name in settings.model_fields}
    written: dict[str, list[str]] = {}
    for path in sorted(HERE.rglob("*.py")):
        if "v1" not in path.parts:
            for name in _literals(path):
                written.setdefault(name, []).append(str(path.relative_to(HERE)))
    twice = {name: paths for name, paths in written.items() if len(paths) > 1 and name in names}
    assert {x: y for x, y in twice.items() if x not in EACH_ITS_OWN} == {}
    assert set(EACH_ITS_OWN) <= set(twice), "no exception that is none"


def test_a_default_that_is_written_twice_is_found() -> None:
    source = "a: int = Field(default=3)\nb: float = 60.0 * 60\nc: int = X\nD = 4\n"
    assert _literal_names(source) == {"a", "b", "d"}
    assert _literal_names("def f(x, y=5, *, z: float = 1.5, w=None, v=0): ...") == {"y", "z"}


@functools.cache
def _literals(path: Path) -> set[str]:
    """Names with a number or a text as their default in a file, or in those of a folder."""
    paths = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return set().union(*(_literal_names(x.read_text()) for x in paths))


def _literal_names(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if _is_documented(_default_of(node.value)):
                found.add(node.target.id)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id.isupper() and _is_documented(node.value):
                found.add(node.targets[0].id.lower())
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            takes = node.args
            last = [*takes.posonlyargs, *takes.args][-len(takes.defaults) :]
            pairs = [*zip(last, takes.defaults, strict=False)]
            pairs += [(x, y) for x, y in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if y]
            found |= {x.arg for x, y in pairs if _is_documented(y)}
    return found


def _default_of(value: ast.expr | None) -> ast.expr | None:
    if not isinstance(value, ast.Call):
        return value
    return next((x.value for x in value.keywords if x.arg == "default"), None)


def _is_documented(value: ast.expr | None) -> bool:
    """A number or a text, or a product of some, except common initial values: nothing, no and 0."""
    if isinstance(value, ast.BinOp):
        return _is_documented(value.left) and _is_documented(value.right)
    return isinstance(value, ast.Constant) and bool(value.value) and value.value is not True


# Defaults in the plugin, in Scala.

OF_THE_APPMASTER = {
    "spark.hrm.executor.maxFailures": AppMasterLimits().failures_max,
    "spark.hrm.executor.failures.validityInterval": AppMasterLimits().failures_window_s,
    "spark.hrm.locality.wait": AppMasterLimits().locality_wait_s,
    "spark.hrm.executor.retry.delay": AppMasterLimits().backoff_s,
    "spark.hrm.executor.retry.delayMax": AppMasterLimits().backoff_max_s,
}
SCALA = sorted((HERE / "spark" / "plugin").glob("*.scala"))
_READ = re.compile(r'(?:get\w*|positiveMs)\(\s*"(spark\.hrm\.[\w.]+)",\s*("[^"]*"|\w+)\s*\)')
_UNITS = {"ms": 0.001, "s": 1.0, "h": 3600.0}


def _of_the_plugin() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in SCALA:
        for name, default in _READ.findall(path.read_text()):
            found.setdefault(name, set()).add(default.strip('"'))
    return found


def _number(text: str) -> float:
    matched = re.fullmatch(r"(\d+)(ms|s|h|)", text)
    assert matched, text
    return int(matched[1]) * _UNITS.get(matched[2], 1.0)


@pytest.mark.parametrize("name", sorted(OF_THE_APPMASTER))
def test_the_plugin_has_the_defaults_of_the_appmaster(name: str) -> None:
    (default,) = _of_the_plugin()[name]
    assert _number(default) == pytest.approx(OF_THE_APPMASTER[name])


@pytest.mark.parametrize("name", sorted({*_of_the_plugin()} - {*OWN_SETTINGS}))
def test_the_plugin_has_one_default_and_its_page_the_same(name: str) -> None:
    (default,) = _of_the_plugin()[name]
    documented, _ = SPARK_SETTINGS[name]
    if default:
        assert documented == f"`{default}`"
    else:
        assert not re.fullmatch(r"`\d+\w*`", documented), "no number where the plugin has none"


def test_the_plugin_reads_what_is_compared_here() -> None:
    assert len(_of_the_plugin()) > 12
    reads = re.compile(r'conf\.get\w*\(\s*"(spark\.hrm\.[\w.]+)')
    read = {x for path in SCALA for x in reads.findall(path.read_text())}
    assert read <= {*SPARK_SETTINGS, *OWN_SETTINGS}


def test_the_port_of_a_master() -> None:
    manager = (HERE / "spark" / "plugin" / "HrmClusterManager.scala").read_text()
    assert re.findall(r"hrm://127\.0\.0\.1:(\d+)", manager) == [str(address.DEFAULT_PORT)]
    assert config.DEFAULT_PORT is address.DEFAULT_PORT


def test_what_hrm_up_is_not_given_is_as_it_is_set() -> None:
    parameters = inspect.signature(up).parameters
    assert [parameters[name].default for name in ("schedulers", "port", "cores", "memory")] == (
        [None] * 4
    )
    help_text = typing.get_type_hints(up, include_extras=True)["schedulers"].__metadata__[0].help
    assert f"else {SCHEDULERS}." in help_text


def test_a_final_update_waits_as_long_as_the_master_does() -> None:
    assert BOUNDS.application_grace_s == appmaster.FINAL_UPDATE_MAX_S


def test_bounds_of_pipelines_are_their_cores() -> None:
    """Written twice: settings serve ``hrm scheduler`` too, which must not import pipelines."""
    defaults = {x: y.default for x, y in config.MasterSettings.model_fields.items()}
    bounds = ClusterBounds()
    assert defaults["pipeline_queue_limit"] == bounds.queue_limit
    assert defaults["pipeline_attempts"] == bounds.attempts_limit
    assert defaults["pipeline_ended_kept"] == bounds.ended_kept
    assert defaults["node_timeout_s"] == bounds.node_timeout_s


def test_policies_of_pipelines_are_their_heuristics() -> None:
    assert config.MasterSettings.model_fields["pipeline_policy"].default == cluster.HEURISTIC
    assert config.AgentSettings.model_fields["pipeline_policy"].default == corun.HEURISTIC
    assert config.AgentSettings.model_fields["binding_mode"].default == Partitioning().mode.value
    assert Partitioning().mode is BindingMode.SHARED
