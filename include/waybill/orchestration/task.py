"""What a task does first: the config, Airflow's connections as the environment that the library reads, a quiet log."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from waybill.config import Config, load_config
from waybill.connections import Connection, variable

__all__ = ["begin_task", "connection_environment", "export_connections"]

_CHATTY = ("kafka", "kazoo", "botocore", "pyiceberg")


def begin_task() -> Config:
    """The config, ready to use: every task of a DAG calls this first.

    The clients' accounts of each connection they open are kept out of the task's log: who is paged looks for figures
    there. Raises `ConfigError`, or what Airflow raises for a connection that it does not know.
    """
    for library in _CHATTY:
        logging.getLogger(library).setLevel(logging.WARNING)
    config = load_config()
    export_connections(config)
    return config


def connection_environment(config: Config) -> dict[str, str]:
    """The connections that `config` names and the environment lacks, as `AIRFLOW_CONN_<ID>` variables.

    Call it inside a task: Airflow then asks its secrets backends and the connections of its UI. Raises what Airflow
    raises for a connection that it does not know (`AirflowNotFoundException`, which names it). A schema registry that
    it does not know is left out: most tasks need none, and the one that does says so.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    wanted = {
        config.storage.connection,
        config.kafka.connection,
        config.zookeeper.connection,
        config.catalog.connection,
    }
    missing = sorted(conn_id for conn_id in wanted if variable(conn_id) not in os.environ)
    found = {variable(conn_id): _to_environment(BaseHook.get_connection(conn_id)) for conn_id in missing}
    for conn_id in config.registries:
        if variable(conn_id) not in os.environ:
            with contextlib.suppress(AirflowNotFoundException):
                found[variable(conn_id)] = _to_environment(BaseHook.get_connection(conn_id))
    return found


def export_connections(config: Config) -> None:
    """Put `connection_environment` into this process's environment: a task has a process of its own."""
    os.environ.update(connection_environment(config))


def _to_environment(found: Any) -> str:
    fields = {name: getattr(found, name) for name in ("conn_type", "host", "port", "login", "password", "schema")}
    given = {name: value for name, value in fields.items() if value is not None}
    return Connection(conn_id=found.conn_id, extra=found.extra_dejson, **given).to_environment()
