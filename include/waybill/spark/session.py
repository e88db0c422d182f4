"""The one place where a SparkSession, or a SparkContext alone, is made."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from waybill.config import Config
from waybill.connections import variable

__all__ = ["REDACTED", "connection_ids", "spark_context", "spark_session", "task_slots"]

_LOCAL_MASTER = "local[2]"
_LOCAL_THREADS = re.compile(r"local\[([0-9]+|\*)(?:,[0-9]+)?\]")
# What Spark shows of its settings anywhere, it shows without these.
REDACTED = "(?i)secret|password|token|credential|access[.-]?key|AIRFLOW_CONN_"


def connection_ids(config: Config) -> tuple[str, ...]:
    """The connections that an executor needs."""
    return (config.storage.connection, config.catalog.connection, *config.registries)


def spark_session(
    app_name: str, connections: Iterable[str] = (), settings: dict[str, str] | None = None
) -> SparkSession:
    """A session on the master that `spark-submit` was given; `local[2]` without one.

    `connections`: names of connections that executors need. Local executors inherit this process's environment; for
    those of a cluster the connections are set in theirs, unless the settings bring them already: as
    `spark.executorEnv.…`, or on Kubernetes from a secret (`spark.kubernetes.executor.secretKeyRef.…`).
    """
    return SparkSession.builder.appName(app_name).config(conf=_conf(connections, settings or {})).getOrCreate()


def spark_context(
    app_name: str, connections: Iterable[str] = (), local_environment: Mapping[str, str] = MappingProxyType({})
) -> SparkContext:
    """As `spark_session`, for what needs no Spark SQL: starting that takes seconds more.

    `local_environment`: variables for workers on this machine; those of a cluster do not get them.
    """
    conf = _conf(connections, {}).setAppName(app_name)
    if _is_local(conf):
        conf.setAll([(f"spark.executorEnv.{name}", value) for name, value in local_environment.items()])
    return SparkContext.getOrCreate(conf)


def task_slots() -> int:
    """How many tasks can run side by side; 1 where the settings do not tell. Starts nothing."""
    conf = _submitted()
    master = conf.get("spark.master") or _LOCAL_MASTER
    local = _LOCAL_THREADS.fullmatch(master)
    if local is not None:
        return os.cpu_count() or 1 if local[1] == "*" else int(local[1])
    if total := conf.get("spark.cores.max"):
        return max(1, int(total))
    executors = conf.get("spark.executor.instances") or conf.get("spark.dynamicAllocation.maxExecutors") or "1"
    return max(1, int(executors)) * int(conf.get("spark.executor.cores") or 1)


def _submitted() -> SparkConf:
    """The settings of `spark-submit`, if it started this."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Its settings, the master above all, are known to its JVM alone.
        SparkContext._ensure_initialized()
    return SparkConf()


def _conf(connections: Iterable[str], settings: Mapping[str, str]) -> SparkConf:
    # Workers must run the interpreter that the driver runs: another one has other packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = _submitted()
    if not conf.contains("spark.master"):
        conf.setMaster(_LOCAL_MASTER)
    for key, value in {**_defaults(conf.get("spark.master", _LOCAL_MASTER)), **settings}.items():
        conf.setIfMissing(key, value)
    if not _is_local(conf):
        # Only once there is a JVM: what is set before goes into its command line, for everybody to read.
        SparkContext._ensure_initialized(conf=conf)
        for name in map(variable, connections):
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
        # Asking the network for a name and an address can take seconds, and nobody else connects.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Executors of a cluster may find this package only once a task has brought it.
        settings |= {"spark.python.daemon.module": "waybill.spark.daemon"}
    return settings
