"""The app with a status document in memory, and users who are named by a header."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from sample_status import NOW_MS, sample_status

from waybill.base.errors import StoreUnavailable
from waybill.config.models import Config
from waybill.interfaces.airflow.ui import WaybillUi
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName, Role
from waybill.interfaces.web.actions import Actions, Order, TriggerRefused
from waybill.interfaces.web.app import PageCaller, Site, Tracer, create_app
from waybill.interfaces.web.frame import Viewer
from waybill.interfaces.web.reading import StatusReader
from waybill.services.store import Store
from waybill.watch.promises.action_log import ActionOutcome
from waybill.watch.promises.status import WatchStatus

PREFIX = "/waybill/ui"
HOST = "http://testserver"
SECRET = b"a secret of all API servers"


@dataclass
class MemoryStore:
    """The part of a store that the log of actions uses."""

    prefix: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    is_away: bool = False

    def create_if_absent(self, key: str, data: bytes) -> None:
        assert self.create_or_read_existing(key, data) is None

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None:
        self._check()
        existing = self.objects.get(key)
        self.objects.setdefault(key, bytes(data))
        return existing

    def read_if_exists(self, key: str) -> bytes | None:
        self._check()
        return self.objects.get(key)

    def _check(self) -> None:
        if self.is_away:
            raise StoreUnavailable("archive", "refused", "start it")


@dataclass
class Pages:
    """The app, what it reads, and what it does."""

    status: WatchStatus | None = field(default_factory=sample_status)
    error: Exception | None = None
    orders: list[tuple[OperationName, Order]] = field(default_factory=list)
    store: MemoryStore = field(default_factory=MemoryStore)
    refusal: str = ""
    now_ms: int = NOW_MS
    clock: float = 0.0
    reads: int = 0
    tracer: Tracer | None = None
    base_url: str = ""
    run: str = ""
    """The DAG run that operations order; '': they are done at once."""
    run_state: str = "queued"

    def client(self, user: str = "ada", role: Role = Role.OPERATOR) -> TestClient:
        """Return a browser of a user."""
        return TestClient(self.app, headers={"x-user": user, "x-role": role.name}, root_path="")

    def __post_init__(self) -> None:
        self.reader = StatusReader(self._read, "watch/status.json.gz", clock=lambda: self.clock)
        actions = Actions(
            lambda: None,  # type: ignore[arg-type,return-value]
            self._open,  # type: ignore[arg-type]
            {name: self._operation(name) for name in PAGE_OPERATIONS},
            lambda: self.now_ms,
        )
        site = Site(PREFIX, SECRET, lambda back: f"/auth/login?next={back}", self.base_url)
        self.pages = create_app(
            self.reader,
            self._authenticate,
            actions,
            site,
            tracer=self.tracer,
            now_ms=lambda: self.now_ms,
        )
        self.app = FastAPI()
        self.app.mount(PREFIX, WaybillUi(lambda _: self.pages))

    def _read(self) -> bytes | None:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return None if self.status is None else self.status.content()

    @contextlib.contextmanager
    def _open(self, _: Config) -> Iterator[Store]:
        yield self.store  # type: ignore[misc]

    def _operation(self, name: OperationName):  # type: ignore[no-untyped-def]
        def do(order: Order) -> ActionOutcome:
            if self.refusal:
                raise TriggerRefused(self.refusal)
            self.orders.append((name, order))
            if self.run:
                return ActionOutcome(True, f"ordered: run {self.run}", f"/dags/d/runs/{self.run}", "d", self.run)
            return ActionOutcome(True, f"{name} is done")

        return do

    def _authenticate(self, request: Request) -> PageCaller:
        user = request.headers.get("x-user")
        if not user:
            raise HTTPException(401, "Not authenticated")
        return PageCaller(
            Viewer(user, Role[request.headers["x-role"]], user == "root"), _never, lambda *_: self.run_state
        )


def _never(dag: str, form: Mapping[str, object], run: str) -> None:
    raise AssertionError(f"{dag} was triggered with {form}")
