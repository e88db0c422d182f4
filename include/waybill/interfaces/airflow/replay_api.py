"""The HTTP API of replay requests inside Airflow's API server, with Airflow's users.

The app is created at its first request (`lazy_app`), from the config and the connections of that moment. If the config
has no section `replay`, the API answers 404; if the config is invalid, or the database does not answer, 503. The reason
is in the log of the API server, which goes on working.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from waybill.interfaces.airflow.lazy_app import LazyApp, NotConfigured

URL_PREFIX = "/waybill/replay"
SERVE_DAG, REQUEST_DAG = "replay", "replay_request"


class ReplayApi(LazyApp):
    """The API, which is created at the first request."""

    def __init__(self, create: Callable[[Any], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("the app of the replay API", create or _create, _body, clock)


def _body(text: str) -> object:
    return {"detail": {"field": "", "message": text}}


def _create(_airflow: Any) -> Any:
    from waybill.config.models import load_valid_streams
    from waybill.interfaces.airflow.tasks import export_replay_connections
    from waybill.replay.requests.api import create_app
    from waybill.replay.requests.database import Database

    config = load_valid_streams()
    if config.replay is None:
        raise NotConfigured("replay is off: add the section `replay:` to the config")
    export_replay_connections(config)
    return create_app(load_valid_streams, Database.of(config), _authenticate())


def _authenticate() -> Callable[..., Any]:
    """Return the FastAPI dependency: a request needs the right to trigger `replay_request`.

    The right to edit `replay` shows all.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, HTTPException

    from waybill.replay.requests.api import Caller

    def caller(user: Any = Depends(get_user)) -> Caller:  # noqa: B008  (this is how FastAPI declares a dependency)
        manager = get_auth_manager()
        may_request = manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=REQUEST_DAG), user=user
        )
        if not may_request:
            raise HTTPException(403, f"you may not trigger the DAG {REQUEST_DAG}, so you may not request a replay")
        return Caller(user.get_name(), sees_all=sees_all_replays(user))

    return caller


def sees_all_replays(user: Any) -> bool:
    """Return whether an Airflow user sees the replay requests of others: the right to edit the DAG `replay` decides."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails

    return bool(get_auth_manager().is_authorized_dag(method="PUT", details=DagDetails(id=SERVE_DAG), user=user))
