"""An authority and what it signs."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from hrm import certificates, errors


def _loaded(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_one_authority_signs_a_pair_for_each_host_and_renews_it(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    master, node = certificates.make(directory, ["master,10.0.0.1,::1", "*.rack-7.local"], 30)
    ca = _loaded(directory / "ca.pem")
    cert = _loaded(master.cert)
    cert.verify_directly_issued_by(ca)
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["master"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.1", "::1"]
    assert (cert.not_valid_after_utc - cert.not_valid_before_utc).days == 30
    assert node.cert.name == "_.rack-7.local.pem"
    for key in (master.key, node.key, directory / "ca.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600

    (again,) = certificates.make(directory, ["master"])
    assert again == master
    assert _loaded(directory / "ca.pem") == ca
    assert _loaded(again.cert).serial_number != cert.serial_number
    assert sorted(p.name for p in directory.iterdir()) == sorted(
        ["ca.pem", "ca.key", "master.pem", "master.key", node.cert.name, node.key.name]
    )


@pytest.mark.parametrize("host", ["", "a,,b", "two words", "a/../b", "ca", "ca,10.0.0.1", "-x"])
def test_what_is_no_name_makes_nothing(tmp_path: Path, host: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="--host"):
        certificates.make(tmp_path / "tls", ["good", host])
    assert not (tmp_path / "tls").exists()


def test_an_authority_of_which_half_is_gone_is_not_created_again(tmp_path: Path) -> None:
    certificates.make(tmp_path, ["a"])
    (tmp_path / "ca.key").unlink()
    before = (tmp_path / "ca.pem").read_bytes()
    with pytest.raises(errors.InvalidConfig, match=r"cannot sign with .*empty directory"):
        certificates.make(tmp_path, ["a"])
    assert (tmp_path / "ca.pem").read_bytes() == before


def test_the_key_of_another_authority_signs_nothing(tmp_path: Path) -> None:
    certificates.make(tmp_path / "one", ["a"])
    certificates.make(tmp_path / "two", ["a"])
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(errors.InvalidConfig, match="is not the key of"):
        certificates.make(tmp_path / "one", ["a"])


def test_an_authority_that_has_expired_states_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 0)
    certificates.make(tmp_path, [])
    with pytest.raises(errors.InvalidConfig, match=r"has expired; .*cat OLD/ca\.pem NEW/ca\.pem"):
        certificates.make(tmp_path, ["a"])


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.InvalidConfig, match="another directory"):
        certificates.make(tmp_path / "file" / "tls", ["a"])
