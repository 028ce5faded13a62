"""Spark's own servers as submitted drivers: which there are, and where they will listen.

A server is a class of Spark's jars, without a file of its own (``spark-internal``, as Spark's
scripts name it). Its port follows from the submission alone, so that the master can show the
address as soon as a node has the driver; the node then binds it to exactly that
(``hrm.agent.drivers.driver_runner``). A port that only the server knows, 0, is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hrm.errors import InvalidRequest

__all__ = [
    "CONNECT_CLASS",
    "CONNECT_HOST",
    "CONNECT_PORT",
    "CONNECT_RETRIES",
    "CONNECT_TOKEN",
    "INTERNAL",
    "SERVERS",
    "THRIFT_CLASS",
    "THRIFT_HOST",
    "THRIFT_PORT",
    "Server",
    "server_of",
]

INTERNAL = "spark-internal"
"""Instead of an application's file: the class is one of Spark's jars, or of ``--jars``."""
CONNECT_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
THRIFT_CLASS = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
SERVERS = {CONNECT_CLASS: "the Spark Connect server", THRIFT_CLASS: "the Thrift server"}

CONNECT_HOST = "spark.connect.grpc.binding.address"
CONNECT_RETRIES = "spark.connect.grpc.port.maxRetries"
CONNECT_PORT = "spark.connect.grpc.binding.port"
_CONNECT_PORT_DEFAULT = "15002"
CONNECT_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # nosec B105 # noqa: S105 - a name
"""The variable by which a server (since Spark 4.0) gets the token that it requires, and a client
the one that it sends."""
THRIFT_HOST, THRIFT_PORT = "HIVE_SERVER2_THRIFT_BIND_HOST", "HIVE_SERVER2_THRIFT_PORT"
"""Variables of its environment, which it prefers to all settings."""
_HIVE_PORT, _HIVE_MODE = "hive.server2.thrift.port", "hive.server2.transport.mode"
_HIVE_PORT_DEFAULT = "10000"
_DRIVER_ENVIRONMENT = "spark.hrm.driverEnv."


@dataclass(frozen=True, slots=True)
class Server:
    """``scheme``: of its address; ``setting``: what gives it another port."""

    scheme: str
    port: int
    setting: str

    def address(self, host: str) -> str:
        """What clients on other machines connect to."""
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"


def server_of(
    main_class: str, conf: Mapping[str, str], arguments: Sequence[str] = ()
) -> Server | None:
    """The server that a submission starts; None: an application, or a server whose address does
    not follow from its port (the Thrift server over HTTP).

    Raises:
        InvalidRequest: its port is none.
    """
    if main_class == CONNECT_CLASS:
        text = conf.get(CONNECT_PORT) or _CONNECT_PORT_DEFAULT
        return Server("sc", _port(text, CONNECT_PORT), CONNECT_PORT)
    if main_class != THRIFT_CLASS or _hive(_HIVE_MODE, conf, arguments).lower() == "http":
        return None
    text = conf.get(_DRIVER_ENVIRONMENT + THRIFT_PORT) or _hive(_HIVE_PORT, conf, arguments)
    setting = f"spark.{_HIVE_PORT}"
    return Server("jdbc:hive2", _port(text or _HIVE_PORT_DEFAULT, setting), setting)


def _hive(name: str, conf: Mapping[str, str], arguments: Sequence[str]) -> str:
    """A property of Hive, in the order in which the Thrift server looks for it; empty: not set."""
    for option, value in itertools.pairwise(arguments):
        if option == "--hiveconf" and value.startswith(f"{name}="):
            return value.partition("=")[2]
    return conf.get(f"spark.{name}") or conf.get(f"spark.hadoop.{name}") or ""


def _port(text: str, setting: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 65_536):
        raise InvalidRequest(
            f"the port is {text!r}: give one from 1 to 65535 with {setting}; no "
            f"command could show a port that the server chooses itself"
        )
    return int(text)
