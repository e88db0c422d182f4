"""An ASGI app that Airflow's API server mounts, and that is created at its first request.

Airflow loads plugins in every process, so this module imports only modules that every task imports anyway. The first
request is not authenticated, since the app does authentication, and there is no app yet. Therefore

- one request creates the app, and others wait without a thread, since Airflow's own routes need the threads;
- after a failure, no request tries again for `RETRY_SECONDS`: a server that does not answer blocks one thread for its
  timeout, and never a second one at the same time;
- the answer to a failure is a fixed text. The reason, which may name addresses and lines of the config, is logged.

It also refuses requests with a query that is not ASCII, which no app can read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
"""For this time after a failure to create the app, no request tries again."""

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class NotConfigured(Exception):
    """The config disables the app: the answer is 404 with this text, which reveals nothing about this installation."""


class LazyApp:
    """Makes the real app when it is first called, and passes requests on to it."""

    def __init__(
        self,
        title: str,
        create: Callable[[Any], Any],
        body_of: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`title` names the app in the log and the answers. `create` gets Airflow's own app, and is called in a thread.

        `body_of` returns the body of an error, to be written as JSON, for its text.
        """
        self._title = title
        self._create = create
        self._body_of = body_of
        self._clock = clock
        self._lock = asyncio.Lock()
        self._app: Any = None
        self._failed: float | None = None
        self._answer = (503, "")

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if not scope.get("query_string", b"").isascii():
            # Servers pass a query on unchanged, and Starlette's `request.url` fails if it is not UTF-8.
            await _send_json(
                send, 400, self._body_of("the query of the address has bytes that must be percent-encoded")
            )
            return
        if self._app is None:
            async with self._lock:  # requests wait here without a thread
                if self._app is None and not self._failed_a_moment_ago():
                    await self._make(scope.get("app"))
        if self._app is None:
            status, text = self._answer
            await _send_json(send, status, self._body_of(text))
            return
        await self._app(scope, receive, send)

    def _failed_a_moment_ago(self) -> bool:
        return self._failed is not None and self._clock() - self._failed < RETRY_SECONDS

    async def _make(self, airflow: Any) -> None:
        from starlette.concurrency import run_in_threadpool

        from waybill.base.errors import WaybillError

        self._answer = (503, f"{self._title} cannot be made now: the log of the API server has the reason")
        try:
            self._app = await run_in_threadpool(self._create, airflow)
        except NotConfigured as error:
            self._answer = (404, str(error))
            self._failed = self._clock()
        except WaybillError as error:
            logger.error("%s cannot be made: %s", self._title, error)
            self._failed = self._clock()
        except Exception:
            logger.exception("%s cannot be made", self._title)
            self._failed = self._clock()


async def _send_json(send: _Send, status: int, document: object) -> None:
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
