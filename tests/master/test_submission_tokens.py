"""Delegation tokens of a submission: who gets them, and for how long they are there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import ownership_keys
from hrm.errors import LimitReached, NotFound
from hrm.master import submission_interpreter
from hrm.master.driver_tokens import DriverTokens
from hrm.v1 import submission_pb2 as pb
from tests.master.submitting import ENDED, RUNNING, agent, lease, state_of, stub, submission
from tests.master.test_services import TIMEOUT_S, refused, running


def tokens_of(submission_id: str, **fields: Any) -> pb.GetTokensRequest:
    return pb.GetTokensRequest(submission_id=submission_id, attempt=1, **fields)


def files_with(text: bytes, directory: Path) -> list[Path]:
    return [x for x in directory.rglob("*") if x.is_file() and text in x.read_bytes()]


async def test_tokens_are_for_the_driver_with_the_lease_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = DriverTokens()
    monkeypatch.setattr(submission_interpreter, "DriverTokens", lambda: held)
    key, other = ownership_keys.new_key(), ownership_keys.new_key()
    request = submission()
    request.ownership_key, request.tokens = key, b"the-tokens-of-ada"
    async with running(tmp_path) as master, agent(master) as one:
        submission_id = (await stub(master).Submit(request)).submission_id
        spec = await one.assigned()
        assert "the-tokens" not in spec.launch.driver
        assert json.loads(spec.launch.driver)["has_tokens"]
        await one.report_state(spec, RUNNING)
        await state_of(master, submission_id, pb.SUBMISSION_STATE_LAUNCHING)
        with refused(grpc.StatusCode.NOT_FOUND, "may not register"):
            await stub(master).GetTokens(tokens_of(submission_id, ownership_key=key))
        await stub(master).Lease(lease(submission_id, ownership_key=key))
        with refused(grpc.StatusCode.PERMISSION_DENIED, "its ownership key is not this one"):
            await stub(master).GetTokens(tokens_of(submission_id, ownership_key=other))
        found = await stub(master).GetTokens(tokens_of(submission_id, ownership_key=key))
        assert found.tokens == b"the-tokens-of-ada"
        assert held.of(submission_id)
        assert not files_with(b"the-tokens", tmp_path)
        await one.report_state(spec, ENDED)
        await state_of(master, submission_id, pb.SUBMISSION_STATE_FINISHED)
        async with asyncio.timeout(TIMEOUT_S):
            while held._tokens:  # noqa: ASYNC110 - dropped once the end is on the disk
                await asyncio.sleep(0.01)
    with pytest.raises(NotFound, match="are gone"):
        held.of(submission_id)


async def test_the_next_master_has_no_tokens_and_says_what_to_do(tmp_path: Path) -> None:
    request = submission()
    request.tokens = b"x"
    async with running(tmp_path) as first, agent(first) as one:
        submission_id = (await stub(first).Submit(request)).submission_id
        spec = await one.assigned()
        await one.report_state(spec, RUNNING)
        await stub(first).Lease(lease(submission_id))
    async with running(tmp_path) as second, agent(second) as one:
        await one.report_state(spec, RUNNING)
        await stub(second).Lease(lease(submission_id))
        with refused(grpc.StatusCode.NOT_FOUND, "submit again, or with a keytab"):
            await stub(second).GetTokens(tokens_of(submission_id))


def test_tokens_in_all_have_a_bound() -> None:
    held = DriverTokens(held_bytes_max=3)
    held.check(b"ab")
    held.keep("driver-1", b"ab")
    with pytest.raises(LimitReached, match="submit again when some have ended"):
        held.check(b"cd")
    held.drop("driver-1")
    held.check(b"cd")
