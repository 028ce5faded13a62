"""hrm token and hrm audit, typed, on a real master."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hrm.cli.app import app
from tests.master.test_services import Running, running


class Shell:
    """``hrm`` with the token of a file."""

    def __init__(self, master: Running, directory: Path) -> None:
        self._master = master
        self._directory = directory

    async def __call__(self, *words: str, token: Path | None = None) -> Result:
        environment = {
            "HRM_MASTER": self._master.address,
            "HRM_HOME": str(self._directory),
            "HRM_TOKEN_FILE": str(token or self._master.settings.token_file),
            "COLUMNS": "250",
        }
        return await asyncio.to_thread(
            CliRunner().invoke, app, words, prog_name="hrm", env=environment
        )

    async def done(self, *words: str, token: Path | None = None) -> str:
        result = await self(*words, token=token)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def refused(self, *words: str, token: Path | None = None) -> str:
        result = await self(*words, token=token)
        assert result.exit_code == 1, result.output
        return result.stderr

    def file(self, name: str, token: str) -> Path:
        path = self._directory / name
        path.write_text(token)
        path.chmod(0o600)
        return path


@pytest.fixture
async def hrm(tmp_path: Path) -> AsyncIterator[Shell]:
    async with running(tmp_path) as master:
        yield Shell(master, tmp_path)


def listed(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


async def test_a_token_is_made_shown_once_used_and_revoked(hrm: Shell) -> None:
    made = await hrm("token", "create", "--user", "ada", "--role", "submitter")
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    token_id = secret.split("_")[1]
    assert f"token {token_id} of user ada, role submitter, until 20" in made.stderr
    assert secret not in made.stderr
    mine = hrm.file("ada", secret)
    assert "user ada, role submitter" in await hrm.done("token", "whoami", token=mine)
    await hrm.done("apps", token=mine)
    text = await hrm.done("token", "list")
    assert secret not in text
    assert [row[:5] for row in listed(text)] == [[token_id, "user", "ada", "submitter", "valid"]]
    assert "revoked" in await hrm.done("token", "revoke", token_id)
    assert f"the token {token_id} of user ada was revoked" in await hrm.refused("apps", token=mine)
    assert await hrm.done("token", "list") == ""
    assert listed(await hrm.done("token", "list", "--all"))[0][4] == "revoked"


async def test_a_token_goes_into_a_private_file_and_nowhere_else(
    hrm: Shell, tmp_path: Path
) -> None:
    path = tmp_path / "bob"
    words = ("token", "create", "--service", "bob", "--role", "viewer", "--file", str(path))
    made = await hrm(*words)
    assert made.exit_code == 0, made.output
    secret = path.read_text().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in made.stdout + made.stderr
    assert "service bob, role viewer" in await hrm.done("token", "whoami", token=path)
    assert "exists; name another file" in await hrm.refused(*words)
    assert len(listed(await hrm.done("token", "list"))) == 1
    missing = tmp_path / "no" / "directory"
    words = (*words[:-1], str(missing))
    assert "cannot write" in await hrm.refused(*words)
    assert len(listed(await hrm.done("token", "list"))) == 1, "what nobody has is revoked"


async def test_kinds_roles_and_ages_are_checked(hrm: Shell) -> None:
    assert "--role is missing" in await hrm.refused("token", "create", "--user", "ada")
    assert "give one of --user" in await hrm.refused("token", "create", "--role", "admin")
    both = await hrm.refused("token", "create", "--user", "a", "--node", "b", "--role", "agent")
    assert "give one of --user" in both
    text = await hrm.refused("token", "create", "--node", "n1", "--role", "admin")
    assert "a node cannot have the role admin" in text
    age = ("token", "create", "--user", "a", "--role", "admin", "--expires", "soon")
    assert "--expires 'soon' is no age" in await hrm.refused(*age)
    assert "give 1 to 253 letters" in await hrm.refused(
        "token", "create", "--user", "a b", "--role", "admin"
    )
    assert await hrm.done("token", "list", "--all") == ""


async def made(hrm: Shell, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        await hrm.done("token", "create", *words, "--output", "json")
    )
    return found


@pytest.mark.parametrize(
    ("words", "role", "hours"),
    [
        (("--user", "a", "--role", "admin"), "admin", 90 * 24),
        (("--user", "a", "--role", "admin", "--expires", "2h"), "admin", 2),
        (("--user", "a", "--role", "admin", "--expires", "never"), "admin", 0),
        (("--node", "n1"), "agent", 0),
        (("--node", "n1", "--join"), "joining", 1),
        (("--role", "agent", "--join"), "joining", 1),
        (("--scheduler", "s1"), "scheduler", 0),
    ],
)
async def test_how_long_a_token_lasts(
    hrm: Shell, words: tuple[str, ...], role: str, hours: int
) -> None:
    info = (await made(hrm, *words))["info"]
    assert info["role"] == role
    lasts_s = info["expires_at_s"] - info["created_at_s"] if info["expires_at_s"] else 0
    assert lasts_s == pytest.approx(hours * 3600)


async def test_users_see_and_revoke_their_own_tokens_alone(hrm: Shell) -> None:
    ada = await made(hrm, "--user", "ada", "--role", "viewer")
    bob = await made(hrm, "--user", "bob", "--role", "operator")
    mine = hrm.file("ada", ada["token"])
    rows = listed(await hrm.done("token", "list", token=mine))
    assert [row[0] for row in rows] == [ada["info"]["token_id"]]
    text = await hrm.refused("token", "revoke", bob["info"]["token_id"], token=mine)
    assert "you have no token" in text
    text = await hrm.refused("token", "create", "--user", "eve", "--role", "admin", token=mine)
    assert "has the role viewer; CreateToken takes one of: admin" in text
    await hrm.done("token", "revoke", ada["info"]["token_id"], token=mine)
    assert "was revoked" in await hrm.refused("token", "list", token=mine)


async def test_the_last_administrator_stays(hrm: Shell) -> None:
    admin = await made(hrm, "--user", "ada", "--role", "admin")
    await hrm.done("token", "revoke", admin["info"]["token_id"])
    text = await hrm.refused("token", "revoke", "cluster")
    assert "the last administrator's, and cannot be revoked" in text
    assert "the cluster's own token, role admin" in await hrm.done("token", "whoami")


async def test_the_audit_log_says_who_did_what_from_where_and_what_came_of_it(hrm: Shell) -> None:
    ada = await made(hrm, "--user", "ada", "--role", "submitter")
    bob = await made(hrm, "--user", "bob", "--role", "viewer")
    mine = hrm.file("ada", ada["token"])
    await hrm.refused("node", "drain", "n1", token=mine)
    await hrm.refused("node", "drain", "n1")
    text = await hrm.refused("audit", token=mine)
    assert "ReadAudit takes one of: admin, operator" in text
    found = json.loads(await hrm.done("audit", "--output", "json"))["entries"]
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in found)
    rows = [(x["name"], x["method"], x["what"], x["result"]) for x in found]
    create, drain = "IdentityService/CreateToken", "AdminService/DrainNodes"
    assert rows[:4] == [
        ("cluster", create, f"{ada['info']['token_id']} ada, kind=user, role=submitter", "ok"),
        ("cluster", create, f"{bob['info']['token_id']} bob, kind=user, role=viewer", "ok"),
        ("ada", drain, "n1", rows[2][3]),
        ("cluster", drain, "n1", rows[3][3]),
    ]
    assert rows[2][3].startswith("PERMISSION_DENIED: the token is that of user ada")
    assert rows[3][3].startswith("NOT_FOUND: ")
    own = json.loads(await hrm.done("audit", "--user", "ada", "--output", "json"))["entries"]
    assert {x["name"] for x in own} == {"ada"} and len(own) == 2
    assert own[0]["role"] == "submitter" and own[0]["token_id"] == ada["info"]["token_id"]
    limited = json.loads(await hrm.done("audit", "--limit", "1", "--output", "json"))["entries"]
    assert limited == found[-1:]
    table = (await hrm.done("audit", "--since", "1h")).splitlines()
    assert table[0].split() == ["time", "identity", "role", "from", "call", "object", "result"]
    assert len(table) == 6
    for token in (ada["token"], bob["token"]):
        assert token not in json.dumps(found)
