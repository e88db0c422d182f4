"""The HTTP API of replay requests, as a FastAPI app.

The API does not authenticate callers itself: `create_app` gets a FastAPI dependency that returns the `Caller`, or
raises an `HTTPException`. Airflow's plugin passes Airflow's own authentication. A caller can see and cancel their own
requests, or all requests if the dependency allows it. For other callers, the request of somebody else does not exist.

Every refusal is JSON: `{"detail": {"field": …, "message": …}}`.
"""

# Without `from __future__ import annotations`: FastAPI would evaluate the annotations of `_router`'s functions outside
# of it, where their dependencies are unknown.
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waybill.base.errors import ReplayQuotaReached, ReplayRefused, ReplayUnavailable
from waybill.config.models import Config
from waybill.replay.requests.api_threads import DatabaseThreads
from waybill.replay.requests.database import Database
from waybill.replay.requests.queue import MAX_PAGE, Queue
from waybill.replay.requests.request import MAX_KEYS, MAX_PRIORITY, parse_request, replay_of
from waybill.replay.requests.states import RequestState
from waybill.replay.requests.stored import RejectedMessage, StoredRequest

MAX_BODY_BYTES = 1 << 20
_RETRY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of the API."""

    name: str
    """The requester of the requests that this caller creates."""
    sees_all: bool = False
    """Whether the requests of others can be seen and cancelled."""


# --- documents, for OpenAPI -------------------------------------------------------------------------------------------


class Base64Key(BaseModel):
    """A message key that is no text."""

    base64: str


class Webhook(BaseModel):
    """Deliver JSON batches to a URL, at least once."""

    type: str = Field(examples=["webhook"])
    url: str = Field(examples=["https://bookings.example.com/missed"])


class KafkaTopic(BaseModel):
    """Deliver messages to a topic, exactly once."""

    type: str = Field(examples=["kafka"])
    connection: str
    topic: str


class S3Objects(BaseModel):
    """Deliver JSON lines to objects of the archive's bucket, exactly once."""

    type: str = Field(examples=["s3"])
    compression: str = Field("gzip", description="gzip, zstd or none")


class RequestedDocument(BaseModel):
    """What a request asks for."""

    stream: str
    keys: list[str | Base64Key] = Field(min_length=1, max_length=MAX_KEYS)
    from_: str = Field(alias="from", description="Included. ISO 8601 with a time zone.")
    to: str = Field(description="Not included. ISO 8601 with a time zone.")
    target: Webhook | KafkaTopic | S3Objects
    priority: int = Field(0, ge=0, le=MAX_PRIORITY)


class ProgressDocument(BaseModel):
    """How far a request is."""

    found: int
    delivered: int
    rejected: int
    duplicates: int = Field(description="Found, and dropped because an earlier message is the same.")
    percent: float = Field(description="How much of the range is read.")
    remaining_seconds: int | None


class RequestDocument(BaseModel):
    """A request with its state and progress."""

    id: str
    state: RequestState
    reason: str
    problem: str = Field(description="Why the last attempt failed. It is tried again.")
    requester: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    request: RequestedDocument
    progress: ProgressDocument
    claims: int
    worker: str | None
    heartbeat_at: str | None


class PageDocument(BaseModel):
    """Requests, the newest first."""

    requests: list[RequestDocument]
    next: str | None = Field(description="The path of the next page.")
    unreadable: list[str] = Field(description="The ids of requests that are damaged; the server's log has the reasons.")


class RejectedDocument(BaseModel):
    """A message that the target rejected, and its answer."""

    topic: str
    partition: int
    offset: int
    reason: str


class RejectedPageDocument(BaseModel):
    """Rejected messages by topic, partition and offset."""

    messages: list[RejectedDocument]
    next: str | None = Field(description="The path of the next page.")


class FaultDocument(BaseModel):
    """What is wrong."""

    field: str
    message: str


class RefusalDocument(BaseModel):
    """The body of every refusal."""

    detail: FaultDocument


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": RefusalDocument} for code in (*codes, 503)}


# --- the app ----------------------------------------------------------------------------------------------------------


def create_app(
    load_config: Callable[[], Config],
    database: Database,
    authenticate: Callable[..., Caller],
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> FastAPI:
    """Return the app. The caller closes the database after the app's end.

    `load_config` is called for each request, so a change of the config needs no restart. `authenticate`: a FastAPI
    dependency. `now_ms`: the clock.
    """
    app = FastAPI(title="Waybill replay", description="Requests for messages between two times.", version="1")
    app.add_middleware(_BodyLimit)
    app.include_router(_router(load_config, database, authenticate, now_ms))
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(ReplayRefused, _on_refused)
    app.add_exception_handler(ReplayUnavailable, _on_unavailable)
    return app


def _router(
    load_config: Callable[[], Config],
    database: Database,
    authenticate: Callable[..., Caller],
    now_ms: Callable[[], int],
) -> APIRouter:
    router = APIRouter()
    threads = DatabaseThreads()

    def open_queue() -> Queue:
        return Queue(database, replay_of(load_config()).quotas)

    async def own_request(request_id: str, caller: Annotated[Caller, Depends(authenticate)]) -> StoredRequest:
        stored = await threads.run(lambda: open_queue().show(request_id))
        if stored.request.requester != caller.name and not caller.sees_all:
            # The answer of an unknown id.
            raise ReplayRefused(f"there is no replay request {stored.request.id} of yours", "id")
        return stored

    @router.post(
        "/requests",
        status_code=202,
        response_model=RequestDocument,
        responses=_refusals(401, 413, 422, 429),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": RequestedDocument.model_json_schema()}},
            }
        },
    )
    async def create_request(
        value: Annotated[Any, Body()],
        caller: Annotated[Caller, Depends(authenticate)],
        http: Request,
        response: Response,
        idempotency_key: Annotated[str | None, Header(max_length=1_000)] = None,
    ) -> dict[str, Any]:
        """Create a request. `Location` is its address; with `Idempotency-Key`, a repeated call creates nothing."""
        now = now_ms()
        stored, _ = await threads.run(
            lambda: open_queue().create(
                parse_request(load_config(), value, now), caller.name, now, idempotency_key=idempotency_key
            )
        )
        # Not `url_for`: it uses the outermost app, which does not have the routes of a mounted app.
        response.headers["Location"] = f"{http.url.path}/{stored.request.id}"
        return stored.document(now)

    @router.get("/requests", response_model=PageDocument, responses=_refusals(401, 422))
    async def list_requests(
        caller: Annotated[Caller, Depends(authenticate)],
        http: Request,
        state: Annotated[RequestState | None, Query()] = None,
        requester: Annotated[str | None, Query(description="Only for those who see all requests.")] = None,
        before: Annotated[str | None, Query(description="The id of the last request of the page before.")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> dict[str, Any]:
        """List requests, the newest first."""
        of = requester if caller.sees_all else caller.name
        page = await threads.run(
            lambda: open_queue().page(state=state, requester=of, before_id=before, limit=limit),
        )
        now = now_ms()
        last = page.next_before
        return {
            "requests": [stored.document(now) for stored in page],
            "next": None if last is None else _path(http.url.include_query_params(before=last)),
            "unreadable": [each.id for each in page.unreadable],
        }

    @router.get("/requests/{request_id}", response_model=RequestDocument, responses=_refusals(401, 404))
    async def show_request(stored: Annotated[StoredRequest, Depends(own_request)]) -> dict[str, Any]:
        """Return a request with its state and progress."""
        return stored.document(now_ms())

    @router.get("/requests/{request_id}/rejected", response_model=RejectedPageDocument, responses=_refusals(401, 404))
    async def list_rejected(
        stored: Annotated[StoredRequest, Depends(own_request)],
        http: Request,
        topic: Annotated[
            str | None, Query(description="With partition and offset: the last of the page before.")
        ] = None,
        partition: Annotated[int, Query(ge=0, lt=1 << 31)] = 0,
        offset: Annotated[int, Query(ge=0, lt=1 << 63)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> dict[str, Any]:
        """List the messages of a request that its target rejected."""
        after = None if topic is None else RejectedMessage(topic.replace("\0", ""), partition, offset, "")
        page = await threads.run(lambda: open_queue().rejected_of(stored.request.id, after=after, limit=limit))
        next_url = None
        if len(page) == limit:
            last = page[-1]
            next_url = http.url.include_query_params(topic=last.topic, partition=last.partition, offset=last.offset)
        return {
            "messages": [message.document() for message in page],
            "next": None if next_url is None else _path(next_url),
        }

    @router.delete("/requests/{request_id}", response_model=RequestDocument, responses=_refusals(401, 404, 409))
    async def cancel_request(
        stored: Annotated[StoredRequest, Depends(own_request)],
        caller: Annotated[Caller, Depends(authenticate)],
        reason: Annotated[str, Query(max_length=1_000)] = "",
    ) -> dict[str, Any]:
        """Cancel a request. What is delivered stays."""
        now = now_ms()
        cancelled = await threads.run(lambda: open_queue().cancel(stored.request.id, caller.name, reason, now))
        return cancelled.document(now)

    return router


def _path(url: Any) -> str:
    return f"{url.path}?{url.query}" if url.query else str(url.path)


# --- refusals ---------------------------------------------------------------------------------------------------------


def _refusal(status: int, field: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": {"field": field, "message": message}}, status, headers)


def _on_refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ReplayRefused)
    if isinstance(error, ReplayQuotaReached):
        return _refusal(429, "", str(error), {"Retry-After": str(error.wait_seconds)})
    return _refusal({"id": 404, "state": 409}.get(error.field, 422), error.field, str(error))


def _on_unavailable(_request: Request, _error: Exception) -> JSONResponse:
    # The message names the database's address, which is not for callers.
    return _refusal(503, "", "the database does not answer: try again", {"Retry-After": str(_RETRY_SECONDS)})


def _on_invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "header"))
    return _refusal(422, field if field.isascii() and field.isprintable() else "", str(first["msg"]))


def _on_http_error(_request: Request, error: Exception) -> Response:
    """Return the error of FastAPI itself, or of the authentication, in the form of the other refusals."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    detail: Any = error.detail  # FastAPI's own subclass has any JSON
    if isinstance(detail, dict):
        return JSONResponse({"detail": detail}, error.status_code, headers)
    return _refusal(error.status_code, "", str(detail), headers)


class _BodyLimit:
    """Refuses a body of more than `MAX_BODY_BYTES` with 413, before all of it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > MAX_BODY_BYTES:
            await self._refuse(scope, receive, send)
            return
        # The body is read here: a refusal within the app's own read would be an error of the server.
        messages: list[Message] = []
        size, more = 0, True
        while more:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
            if size > MAX_BODY_BYTES:
                await self._refuse(scope, receive, send)
                return
        read = iter(messages)

        async def replayed() -> Message:
            message = next(read, None)
            return message if message is not None else await receive()

        await self._app(scope, replayed, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(413, "", f"the body has more than {MAX_BODY_BYTES:,} bytes")
        await refusal(scope, receive, send)
