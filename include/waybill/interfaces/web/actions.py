"""Actions: a click has the effect of a command, and is recorded with the user, the reason and the outcome.

This process executes quick actions, with the functions that the commands call. Actions that publish or remove rows are
executed by a DAG run, which the page triggers with the user's own token: Airflow checks the right once more, and the
run's task stores the decision with the user's name. The page then shows "Ordered" until Airflow knows how the run
ended.

The record's place follows from the form, and the id of the DAG run from the place. So a form that is sent twice, by a
double click or a reload, does nothing the second time, and leads to the page of the first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from waybill.base.decision import Decision, Surface
from waybill.base.errors import StoreUnavailable, WaybillError
from waybill.config.models import Config
from waybill.interfaces.operations.audit_log import record_of, run_ordered_at
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import Operation, OperationName
from waybill.interfaces.web.csrf import time_of_page_key
from waybill.interfaces.web.frame import Viewer
from waybill.services.store import Store
from waybill.watch.promises.action_log import (
    ActionOutcome,
    ActionPlace,
    ActionRecord,
    find_action,
    record_action,
    record_outcome,
)

logger = logging.getLogger(__name__)

MAX_REASON = 500
_MAX_FIELD = 500
_AT_A_TIME = 4
"""The most parallel actions: while S3 hangs, further actions are refused at once."""
_KEPT = 256
_BUSY = "other actions are at work, and S3 may be slow"

Trigger = Callable[[str, Mapping[str, object], str], None]
"""Triggers a DAG as the user: the DAG, the fields of its form, and the id of the run. An existing run with this id is
the same order.

Raises `TriggerRefused`."""
RunState = Callable[[str, str], str]
"""Returns the state of a run of a DAG, as the user can see it in Airflow: `queued`, `running`, `success` or `failed`;
'' if it is unknown."""


class TriggerRefused(Exception):
    """Airflow did not create the DAG run; the text states the reason."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order to execute an operation."""

    operation: Operation
    config: Config
    fields: Mapping[str, str]
    decision: Decision
    run: str
    """The id of the DAG run that executes it."""
    trigger: Trigger
    run_link: Callable[[str, str], str]
    """Returns the address of a DAG run in Airflow's UI."""


Perform = Callable[[Order], ActionOutcome]


@dataclass(frozen=True, slots=True)
class SentForm:
    """A form that was sent. The caller has checked its token."""

    action: OperationName
    form: Mapping[str, str]
    viewer: Viewer
    page_key: str
    """The key of the page with the form; see `waybill.interfaces.web.csrf`."""
    trigger: Trigger
    run_link: Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class ActionRefusal:
    """An action that was not taken, nor recorded."""

    status: int
    """The HTTP status of the answer."""
    text: str
    command: str
    """The command with the same effect, with the reason and the user."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An action that was recorded, and its outcome so far."""

    record: ActionRecord
    outcome: ActionOutcome | None
    """None: it is running, or was interrupted."""


class Actions:
    """Takes actions, and finds those that were taken."""

    def __init__(
        self,
        load_config: Callable[[], Config],
        open_store: Callable[[Config], AbstractContextManager[Store]],
        perform: Mapping[OperationName, Perform],
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._load_config = load_config
        self._open_store = open_store
        self._perform = perform
        self._now_ms = now_ms
        self._running = threading.BoundedSemaphore(_AT_A_TIME)
        self._lock = threading.Lock()
        self._kept: OrderedDict[ActionPlace, Taken] = OrderedDict()

    def take(self, sent: SentForm) -> ActionPlace | ActionRefusal:
        """Take an action, unless this form was sent before.

        Return the place of the record, also if the action was not executed.

        Nothing is done for a user without the role, without a reason, or while the record cannot be stored.
        """
        action, viewer, operation = sent.action, sent.viewer, PAGE_OPERATIONS[sent.action]
        fields = {name: sent.form.get(name, "").strip()[:_MAX_FIELD] for name in operation.fields}
        reason = " ".join(sent.form.get("reason", "").split())[:MAX_REASON]
        command = operation.command_line(operation.values_of(fields), reason or "…", viewer.name)
        if viewer.role < operation.role:
            needed = operation.role.name.lower()
            return ActionRefusal(403, f"you are {viewer.role.name.lower()}, and this needs the role {needed}", command)
        if not reason:
            return ActionRefusal(422, "give the reason: it is stored with the action", command)
        if not self._running.acquire(blocking=False):
            return ActionRefusal(503, f"{_BUSY}: nothing was done; try again in a moment", command)
        try:
            form_ms = time_of_page_key(sent.page_key)
            place = ActionPlace.of(form_ms, sent.page_key, viewer.name, action, fields, reason)
            decision = Decision(reason, viewer.name, Surface.PAGE, self._now_ms())
            record = record_of(place, operation, decision, operation.values_of(fields))
            config = self._load_config()
            with self._open_store(config) as store:
                if record_action(store, record):
                    order = Order(
                        operation, config, fields, decision, run_ordered_at(place), sent.trigger, sent.run_link
                    )
                    self._note(store, record, self._do(action, order))
            return place
        except WaybillError as error:
            return ActionRefusal(503, f"not done, since it cannot be recorded: {error}", command)
        finally:
            self._running.release()

    def find(self, place: ActionPlace) -> Taken | None:
        """Return an action that was taken; None if there is none. Raises a `WaybillError` if S3 does not answer."""
        with self._lock:
            kept = self._kept.get(place)
        if kept is not None:
            return kept
        if not self._running.acquire(blocking=False):
            raise StoreUnavailable(f"{_BUSY}: try again in a moment")
        try:
            config = self._load_config()
            with self._open_store(config) as store:
                found = find_action(store, place)
        finally:
            self._running.release()
        if found is None:
            return None
        taken = Taken(*found)
        if taken.outcome is not None:
            self._keep(taken)
        return taken

    def _do(self, action: OperationName, order: Order) -> ActionOutcome:
        try:
            return self._perform[action](order)
        except (WaybillError, TriggerRefused) as error:
            return ActionOutcome(False, f"{type(error).__name__}: {error}")
        except Exception as error:
            logger.exception("action %s of %s failed", action, order.decision.by)
            return ActionOutcome(False, f"it failed, and the log of the API server has the cause: {error}")

    def _note(self, store: Store, record: ActionRecord, outcome: ActionOutcome) -> None:
        logger.info("%s by %s: %s: %s", record.command, record.by, record.reason, outcome.text)
        self._keep(Taken(record, outcome))
        try:
            record_outcome(store, record, outcome)
        except StoreUnavailable as error:
            logger.warning("the outcome of action %s is not stored: %s", record.place, error)

    def _keep(self, taken: Taken) -> None:
        with self._lock:
            self._kept[taken.record.place] = taken
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
