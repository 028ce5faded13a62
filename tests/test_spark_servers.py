"""Where Spark's servers will listen, from their submission alone."""

from __future__ import annotations

import pytest

from hrm.errors import InvalidRequest
from hrm.spark_servers import CONNECT_CLASS, THRIFT_CLASS, server_of

PORT = "hive.server2.thrift.port"
FROM_CONF = {f"spark.{PORT}": "1", f"spark.hadoop.{PORT}": "2"}
IN_ENVIRONMENT = {"spark.hrm.driverEnv.HIVE_SERVER2_THRIFT_PORT": "4"}


@pytest.mark.parametrize(
    ("main_class", "conf", "arguments", "address"),
    [
        (CONNECT_CLASS, {}, [], "sc://n1:15002"),
        (CONNECT_CLASS, {"spark.connect.grpc.binding.port": "7"}, [], "sc://n1:7"),
        (THRIFT_CLASS, {}, [], "jdbc:hive2://n1:10000"),
        (THRIFT_CLASS, {f"spark.hadoop.{PORT}": "2"}, [], "jdbc:hive2://n1:2"),
        (THRIFT_CLASS, FROM_CONF, [], "jdbc:hive2://n1:1"),
        (THRIFT_CLASS, FROM_CONF, ["--hiveconf", f"{PORT}=3"], "jdbc:hive2://n1:3"),
        (THRIFT_CLASS, IN_ENVIRONMENT, ["--hiveconf", f"{PORT}=3"], "jdbc:hive2://n1:4"),
    ],
)
def test_the_address_follows_from_the_most_specific_setting(
    main_class: str, conf: dict[str, str], arguments: list[str], address: str
) -> None:
    server = server_of(main_class, conf, arguments)
    assert server is not None
    assert server.address("n1") == address


def test_an_address_of_ipv6_is_in_brackets() -> None:
    server = server_of(CONNECT_CLASS, {})
    assert server is not None
    assert server.address("fd00::1") == "sc://[fd00::1]:15002"


def test_applications_and_thrift_over_http_have_no_address() -> None:
    assert server_of("org.example.Job", {}) is None
    assert server_of(THRIFT_CLASS, {"spark.hive.server2.transport.mode": "HTTP"}) is None


@pytest.mark.parametrize("port", ["0", "x", "-1", "65536", "1.5", "²"])
def test_what_is_no_port_is_refused_with_the_setting(port: str) -> None:
    with pytest.raises(InvalidRequest, match=r"spark\.connect\.grpc\.binding\.port"):
        server_of(CONNECT_CLASS, {"spark.connect.grpc.binding.port": port})
