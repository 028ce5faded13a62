"""The registry of tokens: which are accepted, which refused and why, and what can be changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound, PermissionDenied
from hrm.identity import registry as module
from hrm.identity.registry import ENDED_KEPT_S, TokenRegistry
from hrm.identity.roles import CLUSTER, CLUSTER_NAME, AccessRole, IdentityKind
from hrm.identity.tokens import TokenRecord, id_in, is_join_token, new_token
from hrm.master.record_json import decode, encode

CLUSTER_TOKEN = "the-token-of-the-cluster"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def registry(clock: Clock | None = None) -> TokenRegistry:
    return TokenRegistry(CLUSTER_TOKEN, now=clock or Clock())


def add(
    to: TokenRegistry,
    name: str = "ada",
    kind: IdentityKind = IdentityKind.USER,
    role: AccessRole = AccessRole.SUBMITTER,
    lifetime_s: float = 0.0,
) -> tuple[TokenRecord, str]:
    record, token = to.draft(name=name, kind=kind, role=role, lifetime_s=lifetime_s, by=CLUSTER)
    to.put(record)
    return record, token


def test_a_token_is_its_identity_and_the_clusters_is_the_administrators() -> None:
    subject = registry()
    record, token = add(subject)
    assert subject.identify(token) == record.identity
    assert record.identity.name == "ada" and record.identity.role is AccessRole.SUBMITTER
    assert subject.identify(CLUSTER_TOKEN) == CLUSTER


def test_no_secret_is_kept() -> None:
    subject = registry()
    record, token = add(subject)
    secret = token.rpartition("_")[2]
    assert secret not in encode(record)
    assert decode(TokenRecord, encode(record)) == record


def test_what_a_draft_makes_is_worth_nothing_before_it_is_put() -> None:
    subject = registry()
    _, token = subject.draft(
        name="ada", kind=IdentityKind.USER, role=AccessRole.ADMIN, lifetime_s=0.0, by=CLUSTER
    )
    with pytest.raises(PermissionDenied, match="wrong token"):
        subject.identify(token)


@given(position=st.integers(0, 200), letter=st.characters(codec="ascii"))
def test_a_token_with_one_letter_changed_is_none(position: int, letter: str) -> None:
    subject = registry()
    _, token = add(subject)
    position %= len(token)
    forged = token[:position] + letter + token[position + 1 :]
    if forged != token:
        with pytest.raises(PermissionDenied):
            subject.identify(forged)


def test_an_expired_token_is_refused_with_the_time() -> None:
    clock = Clock()
    subject = registry(clock)
    _, token = add(subject, lifetime_s=60.0)
    clock.now += 59.9
    subject.identify(token)
    clock.now += 0.2
    with pytest.raises(PermissionDenied, match=r"of user ada expired at 1970-01-01 00:17:40 UTC"):
        subject.identify(token)


def test_a_revoked_token_is_refused_at_once_and_stays_revoked() -> None:
    clock = Clock()
    subject = registry(clock)
    record, token = add(subject)
    subject.put(subject.revoked(record.token_id))
    with pytest.raises(PermissionDenied, match="was revoked at"):
        subject.identify(token)
    clock.now += 10
    assert subject.revoked(record.token_id).revoked_at_s == 1_000.0


def test_the_last_administrator_cannot_be_locked_out() -> None:
    subject = registry()
    with pytest.raises(InvalidRequest, match="last administrator's, and cannot be revoked"):
        subject.revoked(CLUSTER_NAME)
    with pytest.raises(NotFound):
        subject.revoked("0123456789")
    with pytest.raises(InvalidRequest, match="holder of the cluster's own token"):
        add(subject, name=CLUSTER_NAME)
    assert subject.identify(CLUSTER_TOKEN) == CLUSTER


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (IdentityKind.USER, AccessRole.AGENT),
        (IdentityKind.NODE, AccessRole.ADMIN),
        (IdentityKind.SCHEDULER, AccessRole.AGENT),
        (IdentityKind.CLUSTER, AccessRole.ADMIN),
        (IdentityKind.APPLICATION, AccessRole.APPLICATION),
        (IdentityKind.USER, AccessRole.APPLICATION),
        (IdentityKind.USER, AccessRole.JOINING),
    ],
)
def test_a_role_is_only_for_identities_of_its_kind(kind: IdentityKind, role: AccessRole) -> None:
    with pytest.raises(InvalidRequest):
        add(registry(), kind=kind, role=role)


def test_users_and_services_share_their_names() -> None:
    subject = registry()
    record, _ = add(subject)
    add(subject, role=AccessRole.VIEWER)
    with pytest.raises(AlreadyExists, match="user ada has a token"):
        add(subject, kind=IdentityKind.SERVICE)
    add(subject, kind=IdentityKind.NODE, role=AccessRole.AGENT)
    for record in subject.tokens():
        subject.put(subject.revoked(record.token_id))
    add(subject, kind=IdentityKind.SERVICE)


def test_a_join_token_works_once() -> None:
    subject = registry()
    _, token = add(subject, name="", kind=IdentityKind.NODE, role=AccessRole.JOINING)
    assert is_join_token(token) and not is_join_token(new_token(AccessRole.AGENT)[1])
    identity = subject.identify(token)
    subject.put(subject.used(identity, "n1"))
    with pytest.raises(PermissionDenied, match="works once, and node n1 has used it"):
        subject.used(identity, "n2")
    with pytest.raises(PermissionDenied, match="works once"):
        subject.identify(token)


def test_an_applications_token_ends_with_it_and_is_good_for_no_other() -> None:
    subject = registry()
    token = subject.applications.token_of("driver-1", "ada")
    with pytest.raises(PermissionDenied, match="wrong token"):
        subject.identify(token)
    subject.user_of = {"driver-1": "ada", "driver-2": "bob"}.__getitem__
    identity = subject.identify(token)
    assert (identity.name, identity.scope, identity.role) == (
        "ada",
        "driver-1",
        AccessRole.APPLICATION,
    )
    with pytest.raises(PermissionDenied):
        subject.identify(token.replace("driver-1", "driver-2"))
    with pytest.raises(PermissionDenied):
        subject.identify(token.replace(b"ada".hex(), b"eve".hex()))
    with pytest.raises(PermissionDenied, match="wrong token"):
        subject.identify(subject.applications.token_of("driver-2", "ada"))
    subject.user_of = lambda _: None
    assert subject.identify(token) == replace(identity, forgotten=True)
    subject.user_of = {"driver-1": "ada", "driver-2": "bob"}.__getitem__
    with pytest.raises(PermissionDenied):
        TokenRegistry("another-cluster's-token").identify(token)


async def test_a_lasting_call_ends_with_its_token() -> None:
    subject = TokenRegistry(CLUSTER_TOKEN)
    record, token = add(subject)
    ended = asyncio.create_task(subject.until_ended(subject.identify(token)))
    await asyncio.sleep(0)
    subject.put(replace(record, created_by="someone else"))
    await asyncio.sleep(0)
    assert not ended.done()
    subject.put(subject.revoked(record.token_id))
    assert "was revoked" in (await asyncio.wait_for(ended, 10)).message
    _, short = add(subject, lifetime_s=0.05)
    reason = await asyncio.wait_for(subject.until_ended(subject.identify(short)), 10)
    assert "expired" in reason.message


def test_ended_tokens_are_forgotten_in_time_and_valid_ones_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TOKENS_MAX", 3)
    clock = Clock()
    subject = registry(clock)
    records = [add(subject)[0] for _ in range(3)]
    with pytest.raises(LimitReached, match="there are 3 tokens; revoke"):
        add(subject)
    assert subject.forgettable() == []
    subject.put(subject.revoked(records[1].token_id))
    assert subject.forgettable() == [records[1].token_id], "it makes space"
    subject.forget(records[1].token_id)
    add(subject)
    subject.put(subject.revoked(records[2].token_id))
    subject.forget(records[0].token_id)
    assert subject.forgettable() == []
    clock.now += ENDED_KEPT_S
    assert subject.forgettable() == [records[2].token_id]


@given(st.text(max_size=80))
def test_what_is_no_token_has_no_id(text: str) -> None:
    assert id_in(text) == ""
