"""What is wrong with settings, as a user reads it: the name, where it was set, what is allowed.

pydantic validates, but its messages name types of Python and no place. From each of its errors this
module takes the field and the reason alone. Unknown names are of three kinds: keys of a daemon's
table, which pydantic finds; tables of ``hrm.toml`` and variables with a daemon's prefix, which no
daemon reads, so that a misspelt one would go unnoticed. Each message suggests a close match.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

__all__ = ["FORMER", "invalid", "suggestion", "table_name", "unknown_tables", "unknown_variables"]

TABLES = ("master", "agent", "scheduler", "autoscale")
QUEUE_TABLES = ("queues", "queue_rules")
"""What ``hrm.config.queues`` reads."""

_OF_ONE_POOL = (
    "nothing is set aside for pipelines any more: their workers are containers on all nodes; to "
    "guarantee them cores, give them a queue (hrm queue create root.pipelines --guaranteed "
    'cores=8, then Client(queue="root.pipelines"))'
)
_OF_ONE_POOL_GPUS = (
    "nothing is set aside for pipelines any more: their workers share the GPUs of all nodes; to "
    "guarantee them some, give them a queue (hrm queue create root.pipelines --guaranteed "
    'gpu_memory=16g, then Client(queue="root.pipelines"))'
)
_OWN_PART = (
    "programs use the part of a GPU that their container was requested with; request one "
    "(spark.hrm.executor.gpu.memory)"
)
FORMER: Mapping[str, str] = {
    "pipeline_cores": _OF_ONE_POOL,
    "pipeline_memory_mib": _OF_ONE_POOL,
    "pipeline_gpus": _OF_ONE_POOL_GPUS,
    "gpu_claims_per_user": _OWN_PART,
}
"""Settings that there were, and what to write instead: in any table, as a variable, as a flag."""

_VALUE_SHOWN_MAX = 200


def suggestion(wrong: str, known: Iterable[str], form: str = "{}") -> str:
    """`` (did you mean …?)`` with the known name that is closest to ``wrong``; else nothing."""
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" (did you mean {form.format(close[0])}?)" if close else ""


def unknown_tables(path: Path, document: Mapping[str, Any]) -> list[str]:
    """One line for each top-level name of ``hrm.toml`` that is no daemon's table."""
    tables = ", ".join(f"[{name}]" for name in TABLES[:-1]) + f" and [{TABLES[-1]}]"
    known = (*TABLES, *QUEUE_TABLES)
    return [
        f"{path} has the unknown table [{name}]{suggestion(name, known, '[{}]')}; "
        f"HRM's tables are {tables}, and those of queues"
        if isinstance(value, dict)
        else f"{path}: {name} is outside of any table; move it below the line of its daemon's "
        f"table: {tables}"
        for name, value in document.items()
        if name not in known
    ]


def table_name(queue: str) -> str:
    """As the table of a queue is written."""
    return f'[queues."{queue[:_VALUE_SHOWN_MAX]}"]'


def unknown_variables(
    table: str, prefix: str, fields: Iterable[str], environment: Mapping[str, str]
) -> list[str]:
    """One line for each variable that begins with ``prefix`` and is no setting of that daemon."""
    known = [name.upper() for name in fields]
    unknown = [
        variable
        for variable in environment
        if (upper := variable.upper()).startswith(prefix)
        and upper.removeprefix(prefix) not in known
    ]
    names = {x: x.upper().removeprefix(prefix).lower() for x in unknown}
    unknown = [x for x in unknown if names[x] not in FORMER]
    gone = [
        f"{x} is no setting of hrm {table} any more: {FORMER[name]}; unset {x}"
        for x, name in names.items()
        if name in FORMER
    ]
    return gone + [
        f"{variable} is no setting of hrm {table}"
        f"{suggestion(variable.upper().removeprefix(prefix), known, prefix + '{}')}; correct it, "
        f"or unset {variable}; hrm {table} --help lists the settings"
        for variable in unknown
    ]


def invalid(
    settings_class: type[BaseModel], table: str, error: Mapping[str, Any], place: str
) -> str:
    """One line for one of pydantic's errors.

    Args:
        error: an item of ``ValidationError.errors()``.
        place: where the value was set.
    """
    path: Sequence[Any] = error["loc"]
    name = str(path[0]) + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[1:]
    )
    fields = _fields(settings_class, path)
    last = str(path[-1])
    if error["type"] == "extra_forbidden":
        if len(path) == 1 and last in FORMER:
            return f"{name} ({place}) is no setting any more: {FORMER[last]}"
        more = f"; hrm {table} --help lists the settings" if len(path) == 1 else ""
        return f"{name} ({place}) is no setting{suggestion(last, fields)}{more}"
    given = repr(error["input"])
    if len(given) > _VALUE_SHOWN_MAX:
        given = given[:_VALUE_SHOWN_MAX] + "…"
    if error["type"] == "missing":
        return f"{name} is missing ({place}); add it to {given}"
    if error["type"] == "value_error":  # of a validator of ours, which says what is allowed
        return f"{name} is {given} ({place}): {error['ctx']['error']}"
    field = fields.get(last)
    rule = _allowed(field.annotation, field.metadata) if field is not None else ""
    return f"{name} is {given} ({place}); it must be {rule or error['msg'].lower()}"


def _fields(model: type[BaseModel], path: Sequence[Any]) -> Mapping[str, Any]:
    """The fields of the model that holds the last name of ``path``."""
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = [a for a in _members(field.annotation if field else None) if _is_model(a)]
        if not inner:
            return {}
        model = inner[0]
    return model.model_fields


def _members(annotation: Any) -> list[Any]:
    return [annotation, *(one for arg in typing.get_args(annotation) for one in _members(arg))]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _allowed(annotation: Any, metadata: Iterable[Any]) -> str:
    """What a field accepts, in words; empty: it cannot be said so."""
    if isinstance(annotation, types.UnionType):
        options = [a for a in typing.get_args(annotation) if a is not type(None)]
        return _allowed(options[0], metadata)
    if typing.get_origin(annotation) is typing.Literal:
        *first, last = map(str, typing.get_args(annotation))
        return f"{', '.join(first)} or {last}"
    if annotation is bool:
        return "true or false"
    names = {int: "an integer", float: "a number", Path: "a path"}
    if annotation in names:
        return names[annotation] + _bounds(metadata)
    limits = _limits(metadata)
    if "max_length" in limits and annotation is not str:
        return f"a list of at most {limits['max_length']} items"
    if annotation is str:
        some = " that is not empty" if limits.get("min_length") else ""
        most = f" of at most {limits['max_length']} characters" if "max_length" in limits else ""
        return f"text{some}{most}"
    return ""


def _limits(metadata: Iterable[Any]) -> dict[str, Any]:
    names = ("ge", "gt", "le", "lt", "min_length", "max_length")
    return {
        name: getattr(one, name)
        for one in metadata
        for name in names
        if getattr(one, name, None) is not None
    }


def _bounds(metadata: Iterable[Any]) -> str:
    limits = _limits(metadata)
    if "ge" in limits and "le" in limits:
        return f" from {limits['ge']} to {limits['le']}"
    words = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
    said = [f"{word} {limits[name]}" for name, word in words.items() if name in limits]
    return ", " + " and ".join(said) if said else ""
