"""Make a Spark session that knows `format("quantum")`.

In order: what the caller says (`master`), the environment's `SPARK_REMOTE` (Spark Connect), and all
cores of this machine. Quiet: Spark's own chatter is for who asks for it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quantum.lake.java import java_home
from quantum.lake.package import build_package
from quantum.lake.refusals import BadOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
REMOTE: Final = "SPARK_REMOTE"
_ALWAYS: Final[Mapping[str, str]] = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
}
_ONE_LINE: Final = "%replace{%m}{(?ms)$.*}{}"
"""The first line of what is logged: the error itself comes to the caller, without Java's pages."""
_QUIET: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: {message}%n
appender.console.layout.alwaysWriteExceptions = {stacks}
"""


def spark_session(
    master: str | None = None,
    *,
    name: str = "quantum-lake",
    config: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """Return a session with the data source registered.

    `master` is Spark's own word (`local[2]`, `spark://host:7077`, `sc://host:15002`). On a cluster
    the running sources are shipped to the workers, which need our dependencies in their Python.
    Raises JavaMissing, and BadOption for a master that cannot be meant.
    """
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    remote = master if master and master.startswith("sc://") else None
    if master is None:
        remote = os.environ.get(REMOTE)
    builder = SparkSession.builder.appName(name)
    if remote:
        if remote.startswith("local"):  # a server that is started here
            _prepare_environment()
        builder = builder.remote(remote)
    else:
        builder = builder.master(_checked(master or LOCAL))
        for key, value in _classic(master or LOCAL, log_level).items():
            builder = builder.config(key, value)
    for key, value in {**_ALWAYS, **(config or {})}.items():
        if not remote or key.startswith("spark.sql."):  # a server's own settings stay its own
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not remote:
        session.sparkContext.setLogLevel(log_level)
    if remote or not (master or LOCAL).startswith("local"):
        _ship(session, is_remote=bool(remote))
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Let a session that somebody else made know `format("quantum")`."""
    from quantum.lake.source import QuantumDataSource

    session.dataSource.register(QuantumDataSource)


def _ship(session: SparkSession, *, is_remote: bool) -> None:
    """Let the workers have the sources that run here."""
    package = build_package(_scratch() / "quantum.zip")
    if is_remote:
        session.addArtifacts(str(package), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(package))


@cache
def _scratch() -> Path:
    """Make a directory for what a session needs as files; it ends with the process."""
    directory = tempfile.mkdtemp(prefix="quantum-lake-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _checked(master: str) -> str:
    if master.startswith(("local", "spark://", "yarn", "k8s://")):
        return master
    raise BadOption("no Spark master is written like this", master=master)


def _prepare_environment() -> None:
    """Let the JVM that is started here find a Java, and this Python for its workers."""
    os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def logging_of(level: str) -> str:
    """Describe Spark's logging: a line for each error, and all of it for who asks for more."""
    is_quiet = level in ("ERROR", "FATAL", "OFF")
    message, stacks = (_ONE_LINE, "false") if is_quiet else ("%m", "true")
    return _QUIET.format(level=level, message=message, stacks=stacks)


def _classic(master: str, log_level: str) -> dict[str, str]:
    """Prepare what a driver in this process needs, before its JVM starts."""
    _prepare_environment()
    quiet = _scratch() / "log4j2.properties"
    quiet.write_text(logging_of(log_level), encoding="ascii")
    settings = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{quiet}"}
    if master.startswith("local"):
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings
