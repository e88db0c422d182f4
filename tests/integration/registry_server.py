"""A schema registry for the tests: Apicurio in its own process. Tests fill it with Confluent's client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devstack import preflight
from devstack.control import GuardianHandle
from devstack.registry import Registry, unpacked
from devstack.servers import free_ports, log_tail

_READY_SECONDS = 120.0


@contextmanager
def registry_server(directory: Path) -> Iterator[str]:
    """Start a registry and yield its URL as soon as it answers; stop it at the end of the block."""
    java = preflight.find_java()
    (logs := directory / "logs").mkdir(parents=True)
    registry = Registry(java, unpacked(java), directory / "registry", free_ports(1)[0])
    guardian = GuardianHandle.start(directory)
    try:
        for spec in registry.specs(logs):
            guardian.start_server(spec)
        deadline = time.monotonic() + _READY_SECONDS
        while (missing := registry.why_not_ready()) is not None:
            state = guardian.status().server(registry.name)
            assert state is not None
            if not state.running or time.monotonic() > deadline:
                raise AssertionError(f"{missing}\n{log_tail(Path(state.log))}")
            time.sleep(0.1)
        yield registry.url
    finally:
        guardian.shutdown(grace_seconds=0.0)


def as_connection(url: str) -> str:
    """Return the value of `AIRFLOW_CONN_…` for a registry."""
    return json.dumps({"conn_type": "http", "host": url})
