"""The arguments of ``spark-submit``, parsed as Spark parses them, for cluster deploy mode alone.

Options come before the application's file, as ``--name value`` or ``--name=value``; all arguments
after it are the application's own. A server of Spark (``hrm.spark_servers``) has no such file, and
options that spark-submit does not know are its own. The most specific value of a setting counts:
its own option, then ``--conf``, then the properties file, then ``spark-defaults.conf`` (read where
no properties file is named, or with ``--load-spark-defaults``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hrm.errors import InvalidRequest
from hrm.spark.hrm_settings import unknown_names
from hrm.spark.spark_settings import without_effect
from hrm.spark_servers import INTERNAL, SERVERS

__all__ = ["KEYTAB", "PRINCIPAL", "Options", "parse", "read_properties"]

PRINCIPAL, KEYTAB = "spark.kerberos.principal", "spark.kerberos.keytab"
_OLD = {"spark.yarn.principal": PRINCIPAL, "spark.yarn.keytab": KEYTAB}
_ON_NODES = "local:"

SWITCHES = ("--supervise", "--verbose", "-v", "--load-spark-defaults", "--help", "-h", "--version")
SETTINGS = {
    "--master": "spark.master",
    "--deploy-mode": "spark.submit.deployMode",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-cores": "spark.driver.cores",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-library-path": "spark.driver.extraLibraryPath",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--executor-memory": "spark.executor.memory",
    "--executor-cores": "spark.executor.cores",
    "--num-executors": "spark.executor.instances",
    "--queue": "spark.hrm.queue",
    "--packages": "spark.jars.packages",
    "--exclude-packages": "spark.jars.excludes",
    "--repositories": "spark.jars.repositories",
    "--jars": "spark.jars",
    "--files": "spark.files",
    "--archives": "spark.archives",
    "--py-files": "spark.submit.pyFiles",
    "--principal": PRINCIPAL,
    "--keytab": KEYTAB,
}
"""Options that are only another way to write a setting."""

PROXY_USER = "--proxy-user"
PASSED_ON = (PROXY_USER,)
IGNORED = {
    "--total-executor-cores": "set spark.executor.instances and spark.executor.cores instead",
}
REFUSED = {
    "--remote": "a Spark Connect server is no cluster to submit to",
}
SHELLS = ("pyspark-shell", "spark-shell", "sparkr-shell")
SHELL_CLASSES = {
    "org.apache.spark.repl.Main": "spark-shell",
    "org.apache.spark.sql.application.ConnectRepl": "spark-shell",
    "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver": "spark-sql",
}
_OWN = ("--class", "--properties-file", "--status", "--kill")
KNOWN = {*SWITCHES, *SETTINGS, *PASSED_ON, *IGNORED, *REFUSED, *_OWN, "--conf", "-c"}
_PROPERTY = re.compile(r"((?:\\.|[^\s=:\\])+)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(slots=True)
class Options:
    """The request. ``conf``: all settings, each with its most specific value."""

    conf: dict[str, str] = field(default_factory=dict)
    main: str = ""
    main_class: str = ""
    arguments: tuple[str, ...] = ()
    supervise: bool = False
    verbose: bool = False
    passed_on: tuple[str, ...] = ()
    status: str = ""
    kill: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether the submitter waits for the end."""
        return (
            self.conf.get("spark.hrm.submit.waitAppCompletion", "true").strip().lower() != "false"
        )

    @property
    def sends_conf(self) -> bool:
        """Whether the submitter's configuration directories go to the driver's node."""
        return self.conf.get("spark.hrm.submit.confDirs", "true").strip().lower() != "false"

    @property
    def proxy_user(self) -> str:
        """Whom the driver acts for; empty: the submitter."""
        return dict(zip(self.passed_on[::2], self.passed_on[1::2], strict=True)).get(PROXY_USER, "")

    def shell(self) -> str:
        """The interactive program that this would start; empty for an application."""
        if self.main_class in SHELL_CLASSES:
            return SHELL_CLASSES[self.main_class]
        return self.main if self.main in SHELLS else ""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """The options in ``arguments``, those of spark-submit.

    Raises:
        InvalidRequest: one is unknown, lacks its value, or cannot be served.
    """
    options = Options()
    own: dict[str, str] = {}
    given: dict[str, str] = {}
    found: dict[str, str] = {}
    warnings: list[str] = []
    servers: list[str] = []
    position = 0
    while position < len(arguments) and arguments[position] != INTERNAL:
        option, equals, value = arguments[position].partition("=")
        if found.get("--class") in SERVERS and option not in KNOWN:
            servers.append(arguments[position])
            position += 1
            continue
        if not option.startswith("-"):
            break
        position += 1
        if option in SWITCHES and not equals:
            found[option] = ""
            continue
        if not equals or not option.startswith("--"):
            if position == len(arguments):
                raise InvalidRequest(f"{option} needs a value; --help lists the options")
            option, value = arguments[position - 1], arguments[position]
            position += 1
        if option in ("--conf", "-c"):
            key, sign, text = value.partition("=")
            if not sign:
                raise InvalidRequest(f"--conf {value} is no setting; write --conf NAME=VALUE")
            given[key.strip()] = text
        elif option in SETTINGS:
            own[SETTINGS[option]] = value
        elif option in IGNORED:
            warnings.append(f"{option} has no effect here: {IGNORED[option]}")
        elif option in REFUSED:
            raise InvalidRequest(f"{option} cannot be used with HRM: {REFUSED[option]}")
        elif option in PASSED_ON:
            options.passed_on = (*options.passed_on, option, value)
        elif option in _OWN:
            found[option] = value
        else:
            raise InvalidRequest(f"{option} is no option of spark-submit; --help lists them")
    options.conf = _defaults(found, environment) | given | own
    shipped = environment.get("PYSPARK_PYTHON", "")
    if "/" in shipped and not shipped.startswith("/"):
        # In an archive that is unpacked on each node. Others name a Python of this machine.
        options.conf.setdefault("spark.pyspark.python", shipped)
    _check_keytab(options.conf, acts_for_another=bool(options.proxy_user))
    options.main = arguments[position] if position < len(arguments) else ""
    options.arguments = (*servers, *arguments[position + 1 :])
    options.main_class = found.get("--class", "")
    if options.main_class in SERVERS:
        options.main = options.main or INTERNAL
    options.supervise = "--supervise" in found
    if not options.supervise:
        options.supervise = options.conf.get("spark.driver.supervise", "").lower() == "true"
    options.verbose = "--verbose" in found or "-v" in found
    options.status, options.kill = found.get("--status", ""), found.get("--kill", "")
    options.warnings = (*warnings, *without_effect(options.conf), *unknown_names(options.conf))
    return options


def _check_keytab(conf: dict[str, str], *, acts_for_another: bool) -> None:
    """Check what a driver on a node logs in with; older names in ``conf`` become today's.

    Raises:
        InvalidRequest: it could not.
    """
    for old, new in _OLD.items():
        value = conf.pop(old, "")
        if value:
            conf.setdefault(new, value)
    principal, keytab = conf.get(PRINCIPAL), conf.get(KEYTAB)
    if bool(principal) != bool(keytab):
        raise InvalidRequest("--principal and --keytab belong together; give both, or none")
    if not keytab:
        return
    if acts_for_another:
        raise InvalidRequest("--proxy-user and --keytab exclude each other; leave one of them out")
    if not keytab.startswith(f"{_ON_NODES}/"):
        raise InvalidRequest(
            f"--keytab {keytab} cannot be used in cluster mode: no keytab is sent to nodes; put it "
            f"on each node that may run the driver, readable for the driver's user alone, and "
            f"write --keytab local:/PATH; or leave both out and run kinit: the driver gets tokens"
        )


def _defaults(found: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Of the properties file, and of ``spark-defaults.conf`` where that counts."""
    named = found.get("--properties-file")
    defaults: dict[str, str] = {}
    if not named or "--load-spark-defaults" in found:
        home = environment.get("SPARK_CONF_DIR")
        if not home and environment.get("SPARK_HOME"):
            home = f"{environment['SPARK_HOME']}/conf"
        path = Path(home or "") / "spark-defaults.conf"
        if home and path.is_file():
            defaults = read_properties(path)
    return defaults | (read_properties(Path(named)) if named else {})


def read_properties(path: Path) -> dict[str, str]:
    """A file in the form of ``java.util.Properties``; of Spark's settings alone, as Spark does.

    Raises:
        InvalidRequest: it cannot be read.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read the properties file {path}: {error}") from error
    found: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines():
        line = line.strip()
        matched = _PROPERTY.fullmatch(line) if line and line[0] not in "#!" else None
        if matched is not None:
            key, value = (_unescape(part).strip() for part in matched.groups())
            if key.startswith("spark."):
                found[key] = value
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _UNESCAPED.get(found[1], found[1]), text)
