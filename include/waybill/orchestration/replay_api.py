"""The HTTP API of replay requests inside Airflow's API server, with Airflow's users.

Airflow loads plugins in every process, so this module imports nothing that a task does not have anyway. The app is made
at its first request, from the config and the connections of that moment. A config that is wrong, or that has no section
`replay`, makes the API answer 503 or 404 with the reason, and does not disturb the API server.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__ = ["URL_PREFIX", "ReplayApi"]

logger = logging.getLogger(__name__)

URL_PREFIX = "/waybill/replay"
SERVE_DAG, REQUEST_DAG = "replay", "replay_request"

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ReplayApi:
    """An ASGI app that makes the real one when it is first called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if self._app is None:
            from starlette.concurrency import run_in_threadpool

            failure = await run_in_threadpool(self._make)
            if failure is not None:
                await _answer(send, *failure)
                return
        await self._app(scope, receive, send)

    def _make(self) -> tuple[int, str] | None:
        """Make the app. Return the status and the message of the answer if that fails."""
        from waybill.errors import WaybillError

        with self._lock:
            if self._app is None:
                try:
                    self._app = _create()
                except LookupError as error:
                    return 404, str(error)
                except WaybillError as error:
                    logger.error("the API of replay requests does not work: %s", error)
                    return 503, str(error)
        return None


def _create() -> Any:
    from waybill.config import load_valid_streams
    from waybill.orchestration.tasks import export_replay_connections
    from waybill.replay.api import create_app
    from waybill.replay.database import Database

    config = load_valid_streams()
    if config.replay is None:
        raise LookupError("replay is off: add the section `replay:` to the config")
    export_replay_connections(config)
    return create_app(load_valid_streams, Database.of(config), _authenticate())


def _authenticate() -> Callable[..., Any]:
    """Return the dependency: who may trigger `replay_request` may request, who may edit `replay` sees all."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, HTTPException

    from waybill.replay.api import Caller

    def caller(user: Any = Depends(get_user)) -> Caller:  # noqa: B008  (this is how FastAPI declares a dependency)
        manager = get_auth_manager()
        may_request = manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=REQUEST_DAG), user=user
        )
        if not may_request:
            raise HTTPException(403, f"you may not trigger the DAG {REQUEST_DAG}, so you may not request a replay")
        sees_all = manager.is_authorized_dag(method="PUT", details=DagDetails(id=SERVE_DAG), user=user)
        return Caller(user.get_name(), sees_all=sees_all)

    return caller


async def _answer(send: _Send, status: int, message: str) -> None:
    body = json.dumps({"detail": {"field": "", "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
