"""The pages, as a FastAPI app: server-rendered HTML, fragments of it for polling, and forms of actions.

The app does not authenticate callers itself: `create_app` gets a FastAPI dependency that returns the `PageCaller`, or
raises an `HTTPException`. Every route depends on it, except static files, which reveal nothing.

A page is made of the status document in this process's memory. Pages of the same ten seconds and the same role differ
only in the CSRF token, so one rendering serves all users who poll.
"""

# Without `from __future__ import annotations`: FastAPI would evaluate the annotations of the functions within
# `create_app` outside of it, where their dependencies are unknown.
import hashlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
import orjson
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from waybill.base.errors import WaybillError
from waybill.config.connections.masking import without_urls
from waybill.config.models.quantities import counted
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName, Role
from waybill.interfaces.web.actions import ActionRefusal, Actions, RunState, SentForm, Trigger
from waybill.interfaces.web.csrf import COOKIE, csrf_token, is_own_origin, new_cookie, new_page_key, page_key_of
from waybill.interfaces.web.frame import Links, MessagePage, PageFrame, Viewer, freshness_of
from waybill.interfaces.web.other_pages import cost_page, incidents_page, kafka_page, replays_page, seen_replays
from waybill.interfaces.web.reading import Known, StatusReader
from waybill.interfaces.web.rendering import Renderer
from waybill.interfaces.web.result_page import refusal_page, taken_page
from waybill.interfaces.web.stream_page import stream_page
from waybill.interfaces.web.streams_page import streams_page
from waybill.interfaces.web.topic_partition_rows import TopicPartitionFilter
from waybill.interfaces.web.trace_page import TracePage, TraceQuery
from waybill.watch.promises.action_log import ActionPlace
from waybill.watch.promises.status import WatchStatus

logger = logging.getLogger(__name__)

_BUCKET_MS = 10_000
"""Ages on pages are rounded to ten seconds, so that rendered pages can be kept for this time."""
_KEPT_PAGES = 512
_MAX_FORM_BYTES = 64 << 10
_SLOW_THREADS = 8
"""The size of the thread pool for work that may wait for S3. Airflow's own routes do not use these threads."""
_TOKEN_PLACE = f"token-{secrets.token_hex(16)}"
"""Stands for the CSRF token in pages that are kept. Random, so that no name or message can contain it."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NO_STATE, _START_WATCH = "No state is known yet", "Run `waybill watch`, or start the DAG watch."
_NO_USER = Viewer("", Role.VIEWER)


@dataclass(frozen=True, slots=True)
class PageCaller:
    """The caller of a page."""

    viewer: Viewer
    trigger: Trigger
    """Triggers DAGs with the caller's rights."""
    run_state: RunState
    """Returns the state of a DAG run, with the caller's rights."""


@dataclass(frozen=True, slots=True)
class Site:
    """The place where the app is mounted, and its secrets."""

    prefix: str
    """The path below Airflow's own, such as `/waybill/ui`."""
    secret: bytes
    """All API servers have the same: tokens of one are valid for the others."""
    login_url: Callable[[str], str]
    """Returns the address of the login page, which leads back to the given address."""
    base_url: str = ""
    """The address by which browsers reach Airflow, such as `https://airflow.example.com/team`. A proxy may speak http
    with this process, under another name. '': the address of the request."""

    @property
    def is_secure(self) -> bool:
        return urlsplit(self.base_url).scheme == "https"

    @property
    def hosts(self) -> frozenset[str]:
        """The server's names, with ports, that may differ from the header `Host`."""
        netloc = urlsplit(self.base_url).netloc
        return frozenset({netloc} if netloc else ())


class Tracer(Protocol):
    """Finds messages."""

    def __call__(self, query: TraceQuery, links: Links, streams: tuple[str, ...], /) -> TracePage:
        """Return the page for a query. `streams`: the streams that the user can choose."""
        ...

    def value(self, query: TraceQuery, /) -> bytes:
        """Return the archived value of a message. Raises `LookupError` if there is none."""
        ...


def create_app(
    reader: StatusReader,
    authenticate: Callable[..., PageCaller],
    actions: Actions,
    site: Site,
    *,
    tracer: Tracer | None = None,
    renderer: Renderer | None = None,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> FastAPI:
    """Return the app. `tracer`: None switches the page Trace off."""
    pages = _Pages(reader, site, renderer or Renderer(), now_ms)
    app = FastAPI(title="Waybill", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, pages.error)

    @app.middleware("http")
    async def add_headers(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    in_thread = _InThread()
    app.include_router(_slow(pages, authenticate, actions, tracer, in_thread))
    app.include_router(_polled(pages, authenticate))
    app.include_router(_viewed(pages, authenticate))
    return app


class _InThread:
    """Runs functions in a thread pool of this app, so that a hanging S3 cannot exhaust Airflow's threads."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(_SLOW_THREADS)

    async def __call__(self, function: Callable[..., Response], *arguments: Any) -> Response:
        return await anyio.to_thread.run_sync(partial(function, *arguments), limiter=self._limiter)


def _slow(
    pages: "_Pages",
    authenticate: Callable[..., PageCaller],
    actions: Actions,
    tracer: Tracer | None,
    in_thread: _InThread,
) -> APIRouter:
    """Return the routes that send requests to S3 for a person's request."""
    router = APIRouter()
    who = Depends(authenticate)

    @router.get("/trace")
    async def trace(request: Request, caller: PageCaller = who) -> Response:
        return await in_thread(pages.trace, request, caller, tracer)

    @router.get("/trace/value")
    async def value(request: Request, caller: PageCaller = who) -> Response:
        return await in_thread(pages.value, request, caller, tracer)

    @router.post("/actions/{action}")
    async def act(request: Request, action: str, caller: PageCaller = who) -> Response:
        form = await _form(request)
        return await in_thread(pages.act, request, caller, action, form, actions)

    @router.get("/actions/taken/{place}")
    async def taken(request: Request, place: str, caller: PageCaller = who) -> Response:
        return await in_thread(pages.taken, request, caller, place, actions)

    @router.get("/fragments/taken/{place}")
    async def taken_fragment(request: Request, place: str, caller: PageCaller = who) -> Response:
        return await in_thread(pages.taken_fragment, request, caller, place, actions)

    return router


def _polled(pages: "_Pages", authenticate: Callable[..., PageCaller]) -> APIRouter:
    """Return the routes that a page polls."""
    router = APIRouter()
    who = Depends(authenticate)

    @router.get("/fragments/streams/{name}")
    def stream_fragment(request: Request, name: str, caller: PageCaller = who) -> Response:
        return pages.fragment(request, caller, "stream", name)

    @router.get("/fragments/{page}")
    def fragment(request: Request, page: str, caller: PageCaller = who) -> Response:
        return pages.fragment(request, caller, page)

    @router.get("/api/status")
    def status(request: Request, caller: PageCaller = who) -> Response:
        return pages.status(request, caller.viewer)

    return router


def _viewed(pages: "_Pages", authenticate: Callable[..., PageCaller]) -> APIRouter:
    """Return the routes that people open, and the routes of files."""
    router = APIRouter()
    who = Depends(authenticate)

    @router.get("/")
    def streams(request: Request, caller: PageCaller = who) -> Response:
        return pages.full(request, caller, "streams")

    @router.get("/streams/{name}")
    def stream(request: Request, name: str, caller: PageCaller = who) -> Response:
        return pages.full(request, caller, "stream", name)

    @router.get("/static/{name}")
    async def static(request: Request, name: str) -> Response:
        return pages.static(request, name)

    @router.get("/{page}")
    def other(request: Request, page: str, caller: PageCaller = who) -> Response:
        return pages.full(request, caller, page)

    return router


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises `HTTPException` for a body that is not a form, or too long."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(415, "send a form")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413, f"the form has more than {counted(_MAX_FORM_BYTES, 'byte')}")
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))


_Make = Callable[[WatchStatus, Links, Viewer, int], Any]
_MODELS: Mapping[str, tuple[str, str, _Make]] = {
    "streams": ("Streams", "/", streams_page),
    "incidents": ("Incidents", "/incidents", incidents_page),
    "kafka": ("Kafka", "/kafka", lambda status, links, _, now: kafka_page(status, links, now)),
    "replays": ("Replays", "/replays", replays_page),
    "cost": ("Cost", "/cost", lambda status, links, _, now: cost_page(status, links, now)),
}
"""By template: title, path and model."""


class _Pages:
    """Renders the answers."""

    def __init__(self, reader: StatusReader, site: Site, renderer: Renderer, now_ms: Callable[[], int]) -> None:
        self._reader = reader
        self._site = site
        self._renderer = renderer
        self._now_ms = now_ms
        self._kept: OrderedDict[Any, str] = OrderedDict()
        self._lock = threading.Lock()
        self._json: dict[str | None, tuple[WatchStatus, bytes]] = {}
        """By user; None: who may see the replay requests of all."""

    def full(self, request: Request, caller: PageCaller, template: str, name: str | None = None) -> Response:
        """Return a whole page."""
        return self._answer(request, caller, self._html(request, caller, template, name, "{}.html"))

    def fragment(self, request: Request, caller: PageCaller, template: str, name: str | None = None) -> Response:
        """Return the part of a page that changes; 304 if it has not."""
        html = self._html(request, caller, template, name, "fragments/{}.html")
        return self._changed(request, caller, html)

    def status(self, request: Request, viewer: Viewer) -> Response:
        """Return the status document as JSON, with the replay requests that the user may see, and no whole URLs."""
        known = self._reader.known()
        if known.status is None:
            raise HTTPException(503, known.problem)
        whose = None if viewer.sees_all_replays else viewer.name
        kept = self._json.get(whose)
        if kept is None or kept[0] is not known.status:
            kept = (known.status, orjson.dumps(_seen_by(known.status, viewer)))
            if len(self._json) >= _KEPT_PAGES:
                self._json.clear()
            self._json[whose] = kept
        return _with_etag(request, Response(kept[1], media_type="application/json"))

    def static(self, request: Request, name: str) -> Response:
        """Return a static file. Its address changes with its content, so browsers can cache it."""
        asset = self._renderer.assets.get(name)
        if asset is None:
            raise HTTPException(404, f"there is no file {name}")
        response = Response(asset.content, media_type=asset.media_type)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return _with_etag(request, response)

    def trace(self, request: Request, caller: PageCaller, tracer: Tracer | None) -> Response:
        """Return the page Trace, with what is found for the query of its form."""
        query = _query(request)
        known, links = self._reader.known(), self._links(request)
        streams = () if known.status is None else tuple(each.name for each in known.status.streams)
        wrong = query.problem
        if wrong or tracer is None:
            page = TracePage(query, streams, (), wrong or "messages cannot be traced here: use `waybill trace`", "")
        else:
            page = tracer(query, links, streams)
        frame = self._frame(request, caller.viewer, known, "trace", "Trace", None)
        return self._answer(request, caller, self._renderer.render("trace.html", frame, page), 422 if wrong else 200)

    def value(self, request: Request, caller: PageCaller, tracer: Tracer | None) -> Response:
        """Return the bytes of a message's value, to download. The log names the user who downloaded it."""
        if tracer is None:
            raise HTTPException(404, "messages cannot be traced here")
        if caller.viewer.role < Role.OPERATOR:
            raise HTTPException(403, "the bytes of a message need the role operator")
        query = _query(request)
        if not query.offset or query.problem:
            raise HTTPException(422, query.problem or "give topic, partition and offset")
        try:
            content = tracer.value(query)
        except LookupError as error:
            raise HTTPException(404, str(error)) from error
        except WaybillError as error:
            raise HTTPException(503, str(error)) from error
        name = caller.viewer.name
        logger.info("%s downloads the value of %s/%s@%s", name, query.topic, query.partition, query.offset)
        # Never shown by the browser: a producer may have written a page with scripts.
        headers = {"Content-Disposition": 'attachment; filename="value.bin"', "Cache-Control": "private, no-store"}
        return Response(content, media_type="application/octet-stream", headers=headers)

    def act(
        self, request: Request, caller: PageCaller, action: str, form: Mapping[str, str], actions: Actions
    ) -> Response:
        """Take an action, and redirect to the page with its outcome. So a reload of that page repeats nothing."""
        page_key = self._refuse_forged(request, caller.viewer, form)
        if action not in list(PAGE_OPERATIONS):
            raise HTTPException(404, f"there is no action {action}")
        links = self._links(request)
        back = _own_path(links, form.get("back", ""))
        wanted = SentForm(OperationName(action), form, caller.viewer, page_key, caller.trigger, links.run)
        found = actions.take(wanted)
        if isinstance(found, ActionRefusal):
            frame = self._frame(request, caller.viewer, self._reader.known(), "", action.title(), None)
            html = self._renderer.render("result.html", frame, refusal_page(found, back))
            return self._answer(request, caller, html, found.status)
        address = links.page(f"/actions/taken/{found}?{urlencode({'back': back})}")
        return RedirectResponse(address, 303, {"Cache-Control": "no-store"})

    def taken(self, request: Request, caller: PageCaller, place: str, actions: Actions) -> Response:
        """Return the page with the outcome of an action. It is polled until the outcome is final."""
        return self._answer(request, caller, self._taken_html(request, caller, place, actions, "result.html"))

    def taken_fragment(self, request: Request, caller: PageCaller, place: str, actions: Actions) -> Response:
        """Return the part of that page that changes."""
        return self._changed(
            request, caller, self._taken_html(request, caller, place, actions, "fragments/result.html")
        )

    def error(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request that was refused: a page for people, JSON for programs."""
        assert isinstance(error, HTTPException)  # it is registered only for this class
        path = request.url.path.removeprefix(self._links(request).root)
        if path.startswith(("/api/", "/static/", "/fragments/")):
            body = orjson.dumps({"detail": str(error.detail)})
            return Response(body, error.status_code, media_type="application/json")
        goal = request.headers.get("sec-fetch-dest", "document")
        if error.status_code == 401 and request.method == "GET" and goal == "document":
            return RedirectResponse(self._login(request), 302)
        sign_in = self._login(request) if error.status_code == 401 and request.method == "GET" else ""
        title = _TITLES.get(error.status_code, "Refused")
        message = MessagePage(title, str(error.detail), "", error.status_code, sign_in)
        frame = self._frame(request, _NO_USER, Known(None, ""), "", message.title, None)
        return HTMLResponse(self._renderer.render("message.html", frame, message), error.status_code)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _login(self, request: Request) -> str:
        """Return the address of the login page, which leads back to this page."""
        here = request.url
        if self._site.base_url:  # a proxy may have got the request with another scheme and name than this process
            base = urlsplit(self._site.base_url)
            here = here.replace(scheme=base.scheme, netloc=base.netloc)
        return self._site.login_url(str(here))

    def _taken_html(self, request: Request, caller: PageCaller, place: str, actions: Actions, template: str) -> str:
        """Return the HTML of the page of an action."""
        links, known = self._links(request), self._reader.known()
        parsed = ActionPlace.parse(place)
        try:
            taken = None if parsed is None else actions.find(parsed)
        except WaybillError as error:
            raise HTTPException(503, f"whether it was done cannot be read: {error}") from error
        if taken is None:
            raise HTTPException(404, f"there is no action {place}")
        outcome, state = taken.outcome, ""
        if outcome is not None and outcome.dag:
            state = caller.run_state(outcome.dag, outcome.run)
        page = taken_page(taken, state, _own_path(links, request.query_params.get("back", "")), self._now_ms())
        fragment = None if page.is_final else f"/fragments/taken/{place}?{urlencode({'back': page.back})}"
        frame = self._frame(request, caller.viewer, known, "", taken.record.action.title(), fragment)
        return self._renderer.render(template, frame, page)

    def _links(self, request: Request) -> Links:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        return Links(root, root.removesuffix(self._site.prefix))

    def _frame(
        self, request: Request, viewer: Viewer, known: Known, name: str, title: str, fragment: str | None
    ) -> PageFrame:
        links, now_ms = self._links(request), self._now_ms() // _BUCKET_MS * _BUCKET_MS
        freshness = freshness_of(known.status, known.problem, now_ms)
        back = request.url.path if request.method == "GET" else links.page("/")
        return PageFrame.of(name, title, links, viewer, _TOKEN_PLACE, freshness, fragment=fragment, back=back)

    def _html(self, request: Request, caller: PageCaller, template: str, name: str | None, path: str) -> str:
        """Return the HTML of a page, with a placeholder for the token."""
        known, links, viewer = self._reader.known(), self._links(request), caller.viewer
        choice = TopicPartitionFilter() if name is None else TopicPartitionFilter.of(request.query_params)
        now_ms = self._now_ms() // _BUCKET_MS * _BUCKET_MS
        is_whole = not path.startswith("fragments/")
        # A whole page names its user; a fragment does not depend on anything but the role.
        reader = viewer.name if is_whole or template == "replays" else ""
        at_ms = None if known.status is None else known.status.at_ms
        key = (
            template,
            name,
            path,
            viewer.role,
            viewer.sees_all_replays,
            reader,
            at_ms,
            known.problem,
            now_ms,
            links,
            choice,
        )
        html = self._kept.get(key)
        if html is None:
            # Render one page at a time: after every ten seconds, many users request the same page at once.
            with self._lock:
                html = self._kept.get(key)
                if html is None:
                    html = self._make(request, viewer, known, template, name, path, now_ms, choice)
                    self._kept[key] = html
                    while len(self._kept) > _KEPT_PAGES:
                        self._kept.popitem(last=False)
        return html

    def _make(
        self,
        request: Request,
        viewer: Viewer,
        known: Known,
        template: str,
        name: str | None,
        path: str,
        now_ms: int,
        choice: TopicPartitionFilter,
    ) -> str:
        links, status = self._links(request), known.status
        if template == "stream" and name is not None:
            title, page_path, active = name, f"/streams/{name}", "streams"
        elif template in _MODELS:
            (title, page_path, _), active = _MODELS[template], template
        else:
            raise HTTPException(404, f"there is no page {template}")
        fragment = links.stream(name).replace("/streams/", "/fragments/streams/", 1) if name is not None else None
        frame = self._frame(request, viewer, known, active, title, "" if name is not None else f"/fragments/{template}")
        frame = _with_paths(frame, f"{fragment}{choice.query}" if fragment else frame.fragment, links.page(page_path))
        if status is None:
            message = MessagePage(_NO_STATE, known.problem, _START_WATCH, 503)
            return self._renderer.render(path.format("message"), frame, message)
        if name is None:
            model = _MODELS[template][2](status, links, viewer, now_ms)
        else:
            stream = status.stream(name)
            if stream is None:
                raise HTTPException(404, status.broken.get(name, f"the watch knows no stream {name}"))
            model = stream_page(status, stream, links, viewer, now_ms, choice)
        return self._renderer.render(path.format(template), frame, model)

    def _answer(self, request: Request, caller: PageCaller, html: str, status: int = 200) -> Response:
        """Return HTML with a token of the user, and give a browser without one its cookie."""
        cookie = request.cookies.get(COOKIE, "")
        is_new = not cookie
        if is_new:
            cookie = new_cookie()
        token = csrf_token(self._site.secret, cookie, caller.viewer.name, new_page_key(self._now_ms()))
        response = HTMLResponse(html.replace(_TOKEN_PLACE, token), status, {"Cache-Control": "private, no-store"})
        if is_new:
            secure = self._site.is_secure or request.url.scheme == "https"
            path = f"{self._links(request).root}/"
            response.set_cookie(COOKIE, cookie, path=path, secure=secure, httponly=True, samesite="strict")
        return response

    def _changed(self, request: Request, caller: PageCaller, html: str) -> Response:
        """Return a fragment with the token of the user; 304 if only that token has changed."""
        of_whom = f"{request.cookies.get(COOKIE, '')} {caller.viewer.name} "
        return _with_etag(request, self._answer(request, caller, html), f"{of_whom}{html.replace(_TOKEN_PLACE, '')}")

    def _refuse_forged(self, request: Request, viewer: Viewer, form: Mapping[str, str]) -> str:
        """Return the key of the page with the form. Raises `HTTPException` if no page of this user sent it."""
        hosts = self._site.hosts | {request.headers.get("host", "")}
        if not is_own_origin(request.headers.get("origin"), request.headers.get("sec-fetch-site"), hosts):
            raise HTTPException(403, "the form was not sent by a page of this server")
        cookie = request.cookies.get(COOKIE, "")
        page_key = page_key_of(form.get("csrf", ""), self._site.secret, cookie, viewer.name, self._now_ms())
        if page_key is None:
            raise HTTPException(403, "the page is too old, or another user's: load it again, and repeat the action")
        return page_key


def _seen_by(status: WatchStatus, viewer: Viewer) -> WatchStatus:
    seen = (
        replace(each, target=without_urls(each.target), reason=without_urls(each.reason))
        for each in seen_replays(status, viewer)
    )
    return replace(status, replays=tuple(seen))


def _query(request: Request) -> TraceQuery:
    return TraceQuery(**{name: request.query_params.get(name, "")[:500].strip() for name in _QUERY})


_QUERY = ("stream", "topic", "partition", "offset", "id")
_TITLES = {401: "Sign in", 403: "Not allowed", 404: "Not found", 503: "Not available"}


def _with_paths(frame: PageFrame, fragment: str, back: str) -> PageFrame:
    return replace(frame, fragment=fragment, back=back)


def _own_path(links: Links, path: str) -> str:
    """Return the path to which a page leads back; the first page if the path is outside of this app."""
    is_own = path == links.root or path.startswith(f"{links.root}/")
    return links.page("/") if not is_own or "\\" in path or "//" in path else path


def _with_etag(request: Request, response: Response, content: str | None = None) -> Response:
    """Return the response with the hash of `content`, or of its body; an empty 304 if the browser has it."""
    hashed = response.body if content is None else content.encode()
    etag = f'"{hashlib.sha256(hashed).hexdigest()[:32]}"'
    if response.headers.get("Cache-Control") is None or "no-store" in response.headers["Cache-Control"]:
        response.headers["Cache-Control"] = "private, no-cache"
    response.headers["ETag"] = etag
    if request.headers.get("if-none-match") == etag:
        headers = {name: value for name, value in response.headers.items() if name.lower() != "content-length"}
        return Response(status_code=304, headers=headers)
    return response
