"""The only place where a SparkSession, or a SparkContext without Spark SQL, is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from waybill.config.connections import connection_variable
from waybill.config.models import Config
from waybill.tables.spark.job import local_slots

_LOCAL_MASTER = "local[2]"
_REDACTED_NAMES = (
    *("secret", "password", "passwd", "pwd", "passphrase", "token", "credential", "authorization", "cookie"),
    r"(access|account|api|private|shared|storage|encryption)[._-]?key",
    r"connection[._-]?string",
    r"[._-]sas([._=-]|$)",
    # Any header for a REST catalog's server, since only that server knows which headers are secret.
    r"\.header\.",
    "AIRFLOW_CONN_",
)
_REDACTED_VALUES = (
    r"://[^/\s@]*:[^/\s@]*@",  # user:password@host
    r"[?&;](sig|signature|x-amz-signature|x-goog-signature)=",  # SAS tokens and presigned URLs
    r"\b(bearer|basic) [a-z0-9+/_.~-]{8}",
)
REDACTED = "(?i)" + "|".join((*_REDACTED_NAMES, *_REDACTED_VALUES))
"""Regular expression of the settings whose values Spark hides in its UI and logs (`spark.redaction.regex`).

Spark hides a value if the expression is found in its name or in itself."""


def connection_ids(config: Config) -> tuple[str, ...]:
    """Return the ids of the connections that executors need."""
    return (config.storage.connection, config.catalog.connection, *config.registries)


def spark_session(
    app_name: str, connections: Iterable[str] = (), settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a session on the master of `spark-submit`, or on `local[2]` if it names none.

    `connections`: ids of connections that executors need. Local executors inherit this process's environment. For
    executors of a cluster the connections are added to their environment, unless the settings contain them already: as
    `spark.executorEnv.…`, or on Kubernetes as a secret (`spark.kubernetes.executor.secretKeyRef.…`).
    """
    return SparkSession.builder.appName(app_name).config(conf=_conf(connections, settings or {})).getOrCreate()


def spark_context(
    app_name: str, connections: Iterable[str] = (), local_environment: Mapping[str, str] = MappingProxyType({})
) -> SparkContext:
    """Return a context like that of `spark_session`, without Spark SQL, which takes seconds to start.

    `local_environment`: environment variables for workers on this machine; workers of a cluster do not get them.
    """
    conf = _conf(connections, {}).setAppName(app_name)
    if _is_local(conf):
        conf.setAll([(f"spark.executorEnv.{name}", value) for name, value in local_environment.items()])
    return SparkContext.getOrCreate(conf)


def task_slots() -> int:
    """Return how many tasks can run at the same time; 1 if the settings do not define it. Starts nothing."""
    conf = _submitted()
    local = local_slots(conf.get("spark.master") or _LOCAL_MASTER)
    if local is not None:
        return local
    if total := conf.get("spark.cores.max"):
        return max(1, int(total))
    executors = conf.get("spark.executor.instances") or conf.get("spark.dynamicAllocation.maxExecutors") or "1"
    return max(1, int(executors)) * int(conf.get("spark.executor.cores") or 1)


def _submitted() -> SparkConf:
    """Return the settings of `spark-submit`, if it started this process."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Only the JVM of spark-submit has these settings, such as the master.
        SparkContext._ensure_initialized()
    return SparkConf()


def _conf(connections: Iterable[str], settings: Mapping[str, str]) -> SparkConf:
    # Workers must run the driver's interpreter: another one may have other packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = _submitted()
    if not conf.contains("spark.master"):
        conf.setMaster(_LOCAL_MASTER)
    for key, value in {**_defaults(conf.get("spark.master", _LOCAL_MASTER)), **settings}.items():
        conf.setIfMissing(key, value)
    if not _is_local(conf):
        # Start the JVM first: settings made before its start are on its command line, which every user can read.
        SparkContext._ensure_initialized(conf=conf)
        for name in map(connection_variable, connections):
            if name in os.environ and not conf.contains(f"spark.kubernetes.executor.secretKeyRef.{name}"):
                conf.setIfMissing(f"spark.executorEnv.{name}", os.environ[name])
    return conf


def _is_local(conf: SparkConf) -> bool:
    return (conf.get("spark.master") or "").startswith("local")


def _defaults(master: str | None) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.redaction.regex": REDACTED,
    }
    if (master or "").startswith("local"):
        # A lookup of the host's name and address can take seconds, and only local processes connect.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Not on a cluster: executors there may get this package only together with a task.
        settings |= {"spark.python.daemon.module": "waybill.tables.spark.daemon"}
    return settings
