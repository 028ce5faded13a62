"""``hrm tls``, ``hrm up --tls``, and commands whose server does not use TLS as they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_spark import Run
from tests.cli.test_up_down import SMALL, _hrm, _one_error, directory

__all__ = ["directory"]


def test_certificates_for_a_cluster(hrm: Run, tmp_path: Path) -> None:
    made = hrm("tls", str(tmp_path), "--host", "master,10.0.0.1", "--host", "node-7")
    assert made.exit_code == 0, made.output
    assert made.stdout.splitlines() == [
        str(tmp_path / "ca.pem"),
        f"{tmp_path / 'master.pem'} {tmp_path / 'master.key'}",
        f"{tmp_path / 'node-7.pem'} {tmp_path / 'node-7.key'}",
    ]
    assert "tls_cert" in made.stderr
    refused = hrm("tls", str(tmp_path), "--host", "no name")
    assert (refused.exit_code, "'no name' is no host name" in refused.stderr) == (1, True)


def test_what_hrm_env_exports(hrm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_TOKEN_FILE", str(tmp_path / "token"))
    assert "HRM_TLS_CA" not in json.loads(hrm("env", "--output", "json").stdout)
    (tmp_path / "ca.pem").touch()
    exported = json.loads(hrm("env", "--output", "json").stdout)
    assert exported["HRM_TLS_CA"] == str(tmp_path / "ca.pem")


def test_a_cluster_of_this_machine_with_tls_and_without(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = _hrm("up", *SMALL, "--state-dir", str(directory), "--tls")
    assert up.returncode == 0, up.stderr
    assert "HRM_TLS_CA" not in up.stdout, "the authority lies beside the token"
    monkeypatch.setenv("HRM_HOME", str(directory))
    assert _hrm("nodes").returncode == 0
    with monkeypatch.context() as clear:
        clear.setenv("HRM_TLS_CA", "")
        failed = _hrm("nodes")
        assert "speaks TLS, and this client does not" in _one_error(failed)
        assert len(failed.stderr.splitlines()) == 1, "gRPC's own words are not for people"
    old = (directory / "ca.pem").read_bytes()
    assert _hrm("down").returncode == 0

    monkeypatch.setenv("HRM_TLS_CA", str(directory / "tls" / "ca.pem"))
    up = _hrm("up", *SMALL)
    assert up.returncode == 0, up.stderr
    assert "export HRM_TLS_CA=''" in up.stdout
    assert not (directory / "ca.pem").exists()
    assert "speaks no TLS" in _one_error(_hrm("nodes"))
    monkeypatch.delenv("HRM_TLS_CA")
    assert _hrm("nodes").returncode == 0
    assert (directory / "tls" / "ca.pem").read_bytes() == old, "kept for the next time"


def test_the_authority_of_another_cluster_is_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "ca.pem").write_text("of another cluster")
    for more in ([], ["--tls"]):
        refused = _one_error(_hrm("up", *SMALL, "--state-dir", str(directory), *more))
        assert "was not made by hrm up" in refused
    assert (directory / "ca.pem").read_text() == "of another cluster"
    assert not (directory / "cluster.json").exists()
