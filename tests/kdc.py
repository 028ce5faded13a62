"""A Kerberos realm of its own on loopback: MIT's KDC, with a database in one directory.

Needs the programs of Debian's packages krb5-kdc, krb5-admin-server and krb5-user; nothing of the
machine's own Kerberos is read or changed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["REALM", "Realm", "missing_programs", "realm"]

REALM = "TEST.HRM"
LIMIT_S = 60.0
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_CLIENT = """[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
kdc = 127.0.0.1:{port}
}}
"""
_SERVER = """[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
database_name = {directory}/principal
key_stash_file = {directory}/stash
acl_file = {directory}/acl
supported_enctypes = aes256-cts-hmac-sha1-96:normal
}}
"""


def missing_programs() -> str:
    """Those of a realm that this machine lacks; empty: it has all."""
    return ", ".join(each for each in _PROGRAMS if shutil.which(each, path=_PATH) is None)


@dataclass(frozen=True, slots=True)
class Realm:
    """A realm that runs. ``settings``: the krb5.conf of its clients."""

    directory: Path
    settings: Path

    @property
    def java_option(self) -> str:
        return f"-Djava.security.krb5.conf={self.settings}"

    def keytab(self, principal: str) -> Path:
        """Adds a principal with a random key; returns the file that holds it."""
        path = self.directory / f"{principal.replace('/', '-')}.keytab"
        self.call("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self.call("kadmin.local", "-r", REALM, "-q", f"ktadd -norandkey -k {path} {principal}")
        path.chmod(0o600)
        return path

    def tickets(self, principal: str, keytab: Path) -> Path:
        """A file of tickets, as kinit leaves one."""
        path = self.directory / f"{principal}.tickets"
        self.call("kinit", "-c", f"FILE:{path}", "-k", "-t", str(keytab), principal)
        return path

    def call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [program, *arguments], env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{program}: {done.stderr}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": _PATH,
            "KRB5_CONFIG": str(self.settings),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
        }


@contextmanager
def realm(directory: Path, eventually: Callable[..., object]) -> Iterator[Realm]:
    """A realm that ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    made = Realm(directory, directory / "krb5.conf")
    names = {"realm": REALM, "port": port, "directory": directory}
    made.settings.write_text(_CLIENT.format(**names))
    (directory / "kdc.conf").write_text(_SERVER.format(**names))
    made.call("kdb5_util", "-r", REALM, "create", "-s", "-P", "of-the-tests-alone")
    log = directory / "kdc.log"
    with log.open("wb") as file:
        kdc = subprocess.Popen(
            [shutil.which("krb5kdc", path=_PATH) or "krb5kdc", "-n", "-r", REALM],
            env=made.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        eventually(lambda: kdc.poll() is not None or _listens(port), 20, "the KDC listens")
        assert kdc.poll() is None, log.read_text()
        yield made
    finally:
        kdc.kill()
        kdc.wait(10)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
