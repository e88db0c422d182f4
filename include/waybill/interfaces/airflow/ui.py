"""Waybill's pages inside Airflow's API server, with Airflow's users.

Airflow loads plugins in every process, so this module imports only modules that every task imports anyway. The app is
created at its first request, from the config and the connections of that moment.

| role | right in Airflow |
|---|---|
| viewer | may read the DAG `watch` |
| operator | may trigger the DAGs `quarantine_retry`, `quality_decision` and `backfill` |
| admin | may also trigger the DAG `backfill_undo`, and change Airflow's connections |

A person who can change connections can do everything that Waybill can do anyway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waybill.interfaces.airflow.lazy_app import LazyApp
from waybill.interfaces.airflow.replay_api import sees_all_replays

if TYPE_CHECKING:
    from waybill.interfaces.airflow.page_connections import PageConnections

logger = logging.getLogger(__name__)

URL_PREFIX = "/waybill/ui"
_READ_DAG = "watch"
_TIMEOUT_SECONDS = 30.0


class WaybillUi(LazyApp):
    """The pages, which are created at the first request."""

    def __init__(self, create: Callable[[Any], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("the app of Waybill's pages", create or _create, lambda text: {"detail": text}, clock)


def _create(airflow: Any) -> Any:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.configuration import conf

    from waybill.config.models import load_valid_streams
    from waybill.config.names import status_key
    from waybill.interfaces.airflow.page_connections import PageConnections, page_connection_ids
    from waybill.interfaces.web.actions import Actions
    from waybill.interfaces.web.app import Site, create_app
    from waybill.interfaces.web.perform import PERFORM
    from waybill.interfaces.web.reading import StatusReader
    from waybill.interfaces.web.trace import PageTracer
    from waybill.services.store import Store

    config = load_valid_streams()
    connections = PageConnections(page_connection_ids(config))
    connections.renew()
    document = _StatusDocument(lambda: Store.of(config.storage), connections)
    key = status_key(config.storage.prefix)
    base_url = conf.get("api", "base_url", fallback="")
    site = Site(
        prefix=URL_PREFIX,
        secret=_secret(conf),
        login_url=lambda back: get_auth_manager().get_url_login(next_url=back),
        base_url=base_url if urlsplit(base_url).netloc else "",
    )
    actions = Actions(load_valid_streams, lambda now: Store.of(now.storage), PERFORM)
    reader = StatusReader(document.read, key)
    return create_app(reader, _authenticate(airflow), actions, site, tracer=PageTracer(load_valid_streams))


class _StatusDocument:
    """Reads the status document, with the present connection. Only the thread of the `StatusReader` uses it."""

    def __init__(self, open_store: Callable[[], Any], connections: PageConnections) -> None:
        self._open_store = open_store
        self._connections = connections
        self._store = open_store()
        self._has_failed = False

    def read(self) -> bytes | None:
        """Return the document, None without one. Raises a `WaybillError`; the next call reads the connections again."""
        from waybill.config.names import status_key

        if self._connections.renew(at_once=self._has_failed):
            before, self._store = self._store, self._open_store()
            before.close()
        self._has_failed = True
        content: bytes | None = self._store.read_if_exists(status_key(self._store.prefix))
        self._has_failed = False
        return content


def _secret(conf: Any) -> bytes:
    """Return a secret that all API servers share, derived from the one of Airflow's own sessions."""
    import hashlib
    import hmac

    own = conf.get("api_auth", "jwt_secret", fallback="") or conf.get("api", "secret_key", fallback="")
    if not own:
        raise _no_secret()
    return hmac.new(own.encode(), b"waybill-ui-csrf", hashlib.sha256).digest()


def _no_secret() -> Exception:
    from waybill.base.errors import ConfigError

    return ConfigError("Airflow has no secret: set [api_auth] jwt_secret, the same for all API servers")


# --- users ------------------------------------------------------------------------------------------------------------


def _authenticate(airflow: Any) -> Callable[..., Any]:
    """Return the dependency that finds the user of a request, and the role."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, HTTPException, Request

    from waybill.interfaces.web.app import PageCaller
    from waybill.interfaces.web.frame import Viewer

    def caller(request: Request, user: Any = Depends(get_user)) -> PageCaller:  # noqa: B008  (FastAPI's way)
        role = _role(user)
        if role is None:
            raise HTTPException(403, f"you may not read the DAG {_READ_DAG}, so you may not see Waybill's pages")
        token = _token(request)
        viewer = Viewer(user.get_name(), role, sees_all_replays(user))
        return PageCaller(viewer, _trigger(airflow, token), _run_state(airflow, token))

    # FastAPI needs the class itself: the module's annotations are texts, and the class is imported only here.
    caller.__annotations__["request"] = Request
    return caller


def _role(user: Any) -> Any:
    """Return the role of a user; None for a user without the right to see the pages."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails

    from waybill.interfaces.operations.catalogue import dags_of
    from waybill.interfaces.operations.declaration import Role

    manager = get_auth_manager()
    if not manager.is_authorized_dag(method="GET", details=DagDetails(id=_READ_DAG), user=user):
        return None

    def may_trigger(dag: str) -> bool:
        details = DagDetails(id=dag)
        return bool(
            manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user)
        )

    if not all(may_trigger(dag) for dag in dags_of(Role.OPERATOR)):
        return Role.VIEWER
    may_undo = all(may_trigger(dag) for dag in dags_of(Role.ADMIN))
    may_admin = may_undo and manager.is_authorized_connection(method="PUT", user=user)
    return Role.ADMIN if may_admin else Role.OPERATOR


def _token(request: Any) -> str:
    """Return the token that the request was authenticated with."""
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else str(request.cookies.get(COOKIE_NAME_JWT_TOKEN, ""))


# --- DAG runs ---------------------------------------------------------------------------------------------------------


def _trigger(airflow: Any, token: str) -> Callable[[str, Mapping[str, object], str], None]:
    """Return a function that triggers DAGs with a user's token, by Airflow's REST API within this process."""

    def trigger(dag: str, form: Mapping[str, object], run: str) -> None:
        import anyio.from_thread

        anyio.from_thread.run(_create_run, airflow, token, dag, form, run)

    return trigger


def _run_state(airflow: Any, token: str) -> Callable[[str, str], str]:
    """Return a function that requests the state of a run from Airflow, with a user's token."""

    def state(dag: str, run: str) -> str:
        import anyio.from_thread

        return str(anyio.from_thread.run(_state_of_run, airflow, token, dag, run))

    return state


def _client(airflow: Any, token: str) -> Any:
    """Return a client of Airflow's REST API that does not leave this process."""
    import httpx

    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app=airflow)
    return httpx.AsyncClient(transport=transport, base_url="http://airflow", headers=headers, timeout=_TIMEOUT_SECONDS)


async def _create_run(airflow: Any, token: str, dag: str, form: Mapping[str, object], run: str) -> None:
    from waybill.interfaces.web.actions import TriggerRefused

    if airflow is None:
        raise TriggerRefused("Airflow's own app is not in this process")
    async with _client(airflow, token) as client:
        found = await client.get(f"/api/v2/dags/{dag}")
        if found.is_success and found.json().get("is_paused"):
            raise TriggerRefused(f"DAG {dag} is paused in Airflow, so its run would wait: unpause it, and repeat")
        body = {"logical_date": None, "dag_run_id": run, "conf": dict(form)}
        answer = await client.post(f"/api/v2/dags/{dag}/dagRuns", json=body)
    # 409: the run exists, and is the same order, since its id is derived from the form.
    if answer.is_error and answer.status_code != 409:
        raise TriggerRefused(f"Airflow answered {answer.status_code} to a run of DAG {dag}: {answer.text[:300]}")


async def _state_of_run(airflow: Any, token: str, dag: str, run: str) -> str:
    import httpx

    if airflow is None:
        return ""
    try:
        async with _client(airflow, token) as client:
            answer = await client.get(f"/api/v2/dags/{dag}/dagRuns/{run}")
    except httpx.HTTPError as error:
        logger.warning("the state of run %s of DAG %s is not known: %s", run, dag, error)
        return ""
    return str(answer.json().get("state", "")) if answer.is_success else ""
