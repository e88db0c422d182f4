"""Copy the pages' connections from Airflow's secrets backends to the environment of the API server, and renew them.

Waybill's library reads connections from the environment. A task is a separate process and reads them once; the API
server runs for weeks, and credentials are rotated in the meantime. Variables that the environment had before are not
changed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, MutableMapping

from waybill.config.connections import connection_variable
from waybill.config.models import Config

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0


def page_connection_ids(config: Config) -> list[str]:
    """Return the ids of the connections that the pages and their actions need."""
    ids = (config.storage.connection, config.zookeeper.connection, config.catalog.connection, config.kafka.connection)
    return list(dict.fromkeys((*ids, *config.registries, *config.kinesis_connections)))


class PageConnections:
    """Keeps the variables of connections equal to Airflow's connections. Not thread-safe."""

    def __init__(
        self,
        ids: Iterable[str],
        find: Callable[[str], str | None] | None = None,
        environment: MutableMapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` returns a connection as the text of its variable, None if Airflow has no connection with that id."""
        self._ids = [each for each in ids if connection_variable(each) not in environment]
        self._find = find or _find_in_airflow
        self._environment = environment
        self._clock = clock
        self._renewed: float | None = None

    def renew(self, *, at_once: bool = False) -> bool:
        """Read the connections again, once a minute or at once. Return whether any of them has changed.

        A connection that was removed from Airflow is removed here too: the code that needs it names it in an error.
        While Airflow's database does not answer, the connections stay as they are.
        """
        now = self._clock()
        if not at_once and self._renewed is not None and now - self._renewed < _EVERY_SECONDS:
            return False
        self._renewed = now
        return sum(map(self._renew, self._ids)) > 0  # update all of them: do not stop at the first change

    def _renew(self, conn_id: str) -> bool:
        variable = connection_variable(conn_id)
        before = self._environment.get(variable)
        try:
            found = self._find(conn_id)
        except Exception:
            logger.warning("connection %s cannot be read again", conn_id, exc_info=True)
            return False
        if found is None:
            self._environment.pop(variable, None)
        else:
            self._environment[variable] = found
        return found != before


def _find_in_airflow(conn_id: str) -> str | None:
    """Return a connection from Airflow's secrets backends. The environment is left out, since it holds earlier results.

    Raises the error of a backend that does not answer.
    """
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    from waybill.interfaces.airflow.tasks import to_environment

    for backend in ensure_secrets_backend_loaded():
        if type(backend).__name__ == "EnvironmentVariablesBackend":
            continue
        found = backend.get_connection(conn_id=conn_id)
        if found is not None:
            return to_environment(found)
    return None
