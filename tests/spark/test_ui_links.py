"""What Spark's UI shows of a container: the variables of a driver, and those without log pages."""

from __future__ import annotations

from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerSpec,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.spark.ui_links import Role, ui_variables

SPEC = ContainerSpec(
    container_id=ContainerId("driver-1-x2"),
    application_id=ApplicationId("driver-1"),
    executor_id="2",
    resource_profile_id=0,
    workload_class=WorkloadClass.BATCH,
    resources=Resources(1, 1024),
    unit_id=ResourceUnitId("n/cpu"),
    heap_mib=512,
    user="ada",
)


def test_a_driver_is_identified_by_its_submission() -> None:
    page = "http://[::1]:99/containers/driver-1-x2/stdout?sig=s"
    variables = ui_variables(
        SPEC, Role.DRIVER, node="n1", host="::1", stdout_url=page, stderr_url="http://e"
    )
    assert variables == {
        "SPARK_DRIVER_LOG_URL_STDOUT": page,
        "SPARK_DRIVER_LOG_URL_STDERR": "http://e",
        "SPARK_DRIVER_ATTRIBUTE_CONTAINER_ID": "driver-1-x2",
        "SPARK_DRIVER_ATTRIBUTE_HOST": "::1",
        "SPARK_DRIVER_ATTRIBUTE_HTTP_ADDRESS": "[::1]:99",
        "SPARK_DRIVER_ATTRIBUTE_HTTP_SCHEME": "http://",
        "SPARK_DRIVER_ATTRIBUTE_LOG_FILES": "stdout,stderr",
        "SPARK_DRIVER_ATTRIBUTE_NODE": "n1",
        "SPARK_DRIVER_ATTRIBUTE_SUBMISSION_ID": "driver-1",
        "SPARK_DRIVER_ATTRIBUTE_USER": "ada",
    }


def test_without_log_pages_there_are_no_links() -> None:
    variables = ui_variables(SPEC, Role.EXECUTOR, node="", host="h", stdout_url="", stderr_url="")
    assert not any("URL" in name or "HTTP" in name or "NODE" in name for name in variables)
    assert variables["SPARK_EXECUTOR_ATTRIBUTE_EXECUTOR_ID"] == "2"
