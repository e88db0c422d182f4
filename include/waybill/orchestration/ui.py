"""Waybill's pages inside Airflow's API server, with Airflow's users.

Airflow loads plugins in every process, so this module imports nothing that a task does not have anyway. The app is made
at its first request, from the config and the connections of that moment.

| role | right in Airflow |
|---|---|
| viewer | may read the DAG `watch` |
| operator | may trigger the DAGs `quarantine_retry` and `backfill` |
| admin | may change Airflow's connections, with which everything that Waybill may do can be done anyway |
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

__all__ = ["URL_PREFIX", "WaybillUi"]

logger = logging.getLogger(__name__)

URL_PREFIX = "/waybill/ui"
_READ_DAG = "watch"
_ACT_DAGS = ("quarantine_retry", "backfill")
_TIMEOUT_SECONDS = 30.0

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WaybillUi:
    """An ASGI app that makes the real one when it is first called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if self._app is None:
            from starlette.concurrency import run_in_threadpool

            # Airflow's own app, by which DAGs are triggered without leaving this process.
            failure = await run_in_threadpool(self._make, scope.get("app"))
            if failure:
                await _answer(send, failure)
                return
        await self._app(scope, receive, send)

    def _make(self, airflow: Any) -> str:
        """Make the app. Return why that fails; '' if it does not."""
        from waybill.errors import WaybillError

        with self._lock:
            if self._app is None:
                try:
                    self._app = _create(airflow)
                except WaybillError as error:
                    logger.error("Waybill's pages do not work: %s", error)
                    return str(error)
        return ""


def _create(airflow: Any) -> Any:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.configuration import conf

    from waybill.config import load_valid_streams
    from waybill.names import status_key
    from waybill.orchestration.tasks import export_page_connections
    from waybill.store import Store
    from waybill.web.actions import Actions
    from waybill.web.app import Site, create_app
    from waybill.web.operations import OPERATIONS
    from waybill.web.reading import StatusReader
    from waybill.web.trace import PageTracer

    config = load_valid_streams()
    export_page_connections(config)
    store = Store.of(config.storage)
    key = status_key(store.prefix)
    base_url = urlsplit(conf.get("api", "base_url", fallback=""))
    site = Site(
        prefix=URL_PREFIX,
        secret=_secret(conf),
        login_url=lambda back: get_auth_manager().get_url_login(next_url=back),
        hosts=frozenset({base_url.netloc} if base_url.netloc else ()),
        is_secure=base_url.scheme == "https",
    )
    actions = Actions(load_valid_streams, lambda now: Store.of(now.storage), OPERATIONS)
    reader = StatusReader(lambda: store.read_if_exists(key), key)
    return create_app(reader, _authenticate(airflow), actions, site, tracer=PageTracer(load_valid_streams))


def _secret(conf: Any) -> bytes:
    """Return a secret that all API servers share, derived from the one of Airflow's own sessions."""
    import hashlib
    import hmac

    own = conf.get("api_auth", "jwt_secret", fallback="") or conf.get("api", "secret_key", fallback="")
    if not own:
        raise _no_secret()
    return hmac.new(own.encode(), b"waybill-ui-csrf", hashlib.sha256).digest()


def _no_secret() -> Exception:
    from waybill.errors import ConfigError

    return ConfigError("Airflow has no secret: set [api_auth] jwt_secret, the same for all API servers")


# --- users ------------------------------------------------------------------------------------------------------------


def _authenticate(airflow: Any) -> Callable[..., Any]:
    """Return the dependency that finds the user of a request, and the role."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, HTTPException, Request

    from waybill.web.app import Caller
    from waybill.web.frame import Viewer

    def caller(request: Request, user: Any = Depends(get_user)) -> Caller:  # noqa: B008  (FastAPI's way)
        role = _role(user)
        if role is None:
            raise HTTPException(403, f"you may not read the DAG {_READ_DAG}, so you may not see Waybill's pages")
        viewer = Viewer(user.get_name(), role, "")
        return Caller(viewer, _trigger(airflow, _token(request)))

    # The module's annotations are texts, and the class is imported here: FastAPI needs the class itself.
    caller.__annotations__["request"] = Request
    return caller


def _role(user: Any) -> Any:
    """Return the role of a user; None for one who may see nothing."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails

    from waybill.web.frame import Role

    manager = get_auth_manager()
    if not manager.is_authorized_dag(method="GET", details=DagDetails(id=_READ_DAG), user=user):
        return None
    may_act = all(
        manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag), user=user
        )
        for dag in _ACT_DAGS
    )
    if not may_act:
        return Role.VIEWER
    return Role.ADMIN if manager.is_authorized_connection(method="PUT", user=user) else Role.OPERATOR


def _token(request: Any) -> str:
    """Return the token that the request was authenticated with."""
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else str(request.cookies.get(COOKIE_NAME_JWT_TOKEN, ""))


# --- DAG runs ---------------------------------------------------------------------------------------------------------


def _trigger(airflow: Any, token: str) -> Callable[[str, Mapping[str, object]], str]:
    """Return what triggers DAGs with a user's token: through Airflow's REST API, within this process."""

    def trigger(dag: str, form: Mapping[str, object]) -> str:
        import anyio.from_thread

        return str(anyio.from_thread.run(_create_run, airflow, token, dag, form))

    return trigger


async def _create_run(airflow: Any, token: str, dag: str, form: Mapping[str, object]) -> str:
    import httpx

    from waybill.web.actions import TriggerRefused

    if airflow is None:
        raise TriggerRefused("Airflow's own app is not in this process")
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app=airflow)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://airflow", headers=headers, timeout=_TIMEOUT_SECONDS
    ) as client:
        found = await client.get(f"/api/v2/dags/{dag}")
        if found.is_success and found.json().get("is_paused"):
            raise TriggerRefused(f"DAG {dag} is paused in Airflow, so its run would wait: unpause it, and repeat")
        answer = await client.post(f"/api/v2/dags/{dag}/dagRuns", json={"logical_date": None, "conf": dict(form)})
    if answer.is_error:
        raise TriggerRefused(f"Airflow answered {answer.status_code} to a run of DAG {dag}: {answer.text[:300]}")
    return str(answer.json()["dag_run_id"])


async def _answer(send: _Send, message: str) -> None:
    body = json.dumps({"detail": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
