"""Records of the store as JSON, and back, checked strictly.

A record that was truncated or changed on the disk is refused where it is read, with its field,
rather than half an hour later in the core.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from enum import Enum
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hrm.core.messages.submissions import SubmissionRecord
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.identity.tokens import TokenRecord

__all__ = ["decode", "encode"]

R = TypeVar("R", ApplicationRecord, SubmissionRecord, TokenRecord)

_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
# In a tuple of one: pydantic accepts no configuration for a bare dataclass.
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {
    ApplicationRecord: TypeAdapter(tuple[ApplicationRecord], config=_CONFIG),
    SubmissionRecord: TypeAdapter(tuple[SubmissionRecord], config=_CONFIG),
    TokenRecord: TypeAdapter(tuple[TokenRecord], config=_CONFIG),
}


def encode(record: ApplicationRecord | SubmissionRecord | TokenRecord) -> str:
    """A record as JSON."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return json.dumps(values, sort_keys=True, default=_plain)


def decode(kind: type[R], text: str) -> R:
    """A record from JSON; fields that this version does not know are ignored.

    Raises:
        ValueError: it is not a valid record; the message names the first wrong field, without
            its value, which may be a secret.
    """
    record: R
    try:
        (record,) = _ADAPTERS[kind].validate_json(f"[{text}]")
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"][1:]))
        raise ValueError(f"{where}: {problem['msg']}" if where else problem["msg"]) from None
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else asdict(value)
