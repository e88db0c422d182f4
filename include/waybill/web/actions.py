"""Actions: a click does what a command does, and is recorded with the user, the reason and the outcome.

What is quick is done by this process, with the functions that the commands call. What publishes or removes rows is
done by a DAG run, which the page triggers with the user's own token: Airflow checks the right once more, and the run's
task stores the decision with the user's name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from waybill.config import Config
from waybill.errors import StoreUnavailable, WaybillError
from waybill.store import Store
from waybill.watch.action_log import ActionOutcome, ActionRecord, record_action, record_outcome
from waybill.web.forms import ACTION_ROLES, ActionName, command_of
from waybill.web.frame import Viewer

__all__ = ["FIELDS", "ActionResult", "Actions", "Operation", "Order", "Trigger", "TriggerRefused"]

logger = logging.getLogger(__name__)

MAX_REASON = 500
_MAX_FIELD = 500

FIELDS: Mapping[ActionName, tuple[str, ...]] = {
    ActionName.ACKNOWLEDGE: ("incident",),
    ActionName.RELEASE: ("stream",),
    ActionName.REJECT: ("stream",),
    ActionName.RETRY: ("stream", "kind", "topic"),
    ActionName.PAUSE: ("stream",),
    ActionName.RESUME: ("stream",),
    ActionName.PROMOTE: ("stream", "backfill"),
    ActionName.UNDO: ("stream", "backfill"),
    ActionName.CANCEL: ("stream", "backfill"),
    ActionName.ACCEPT_GAP: ("stream", "topic", "partition"),
}
"""The fields of each action. Others are ignored."""

Trigger = Callable[[str, Mapping[str, object]], str]
"""Triggers a DAG as the user, with the fields of its form, and returns the id of the run.

Raises `TriggerRefused`."""


class TriggerRefused(Exception):
    """Airflow did not create the DAG run; the text says why."""


@dataclass(frozen=True, slots=True)
class Order:
    """What an operation is to do."""

    config: Config
    fields: Mapping[str, str]
    by: str
    reason: str
    trigger: Trigger
    run_link: Callable[[str, str], str]
    """Returns the address of a DAG run in Airflow's UI."""


Operation = Callable[[Order], ActionOutcome]


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What the page says after an action."""

    action: ActionName
    is_done: bool
    text: str
    command: str
    """The command that does the same, with the reason and the user."""
    href: str
    """The DAG run that does it; '' if it is done, or refused."""
    back: str
    record_key: str
    """The key of its record; '' if it was not recorded, and so not done."""
    status: int = 200
    """The HTTP status of the answer."""

    @property
    def recorded(self) -> bool:
        return bool(self.record_key)


class Actions:
    """Takes actions."""

    def __init__(
        self,
        load_config: Callable[[], Config],
        open_store: Callable[[Config], AbstractContextManager[Store]],
        operations: Mapping[ActionName, Operation],
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._load_config = load_config
        self._open_store = open_store
        self._operations = operations
        self._now_ms = now_ms

    def take(
        self,
        action: ActionName,
        form: Mapping[str, str],
        viewer: Viewer,
        trigger: Trigger,
        run_link: Callable[[str, str], str],
        back: str,
    ) -> ActionResult:
        """Take an action, and return what came of it. Refusals are results, not errors.

        The caller has checked the CSRF token. Nothing is done for a user without the role, without a reason, or while
        the record cannot be stored.
        """
        fields = {name: form.get(name, "").strip()[:_MAX_FIELD] for name in FIELDS[action]}
        reason = " ".join(form.get("reason", "").split())[:MAX_REASON]
        command = command_of(action, fields, reason or "…", viewer.name)

        def refused(status: int, text: str, key: str = "") -> ActionResult:
            return ActionResult(action, False, text, command, "", back, key, status)

        if viewer.role < ACTION_ROLES[action]:
            needed = ACTION_ROLES[action].name.lower()
            return refused(403, f"you are {viewer.role.name.lower()}, and this needs the role {needed}")
        if not reason:
            return refused(422, "give the reason: it is stored with the action")
        record = ActionRecord.of(self._now_ms(), viewer.name, action, fields, reason, command)
        try:
            config = self._load_config()
            with self._open_store(config) as store:
                key = record_action(store, record)
                outcome = self._do(action, Order(config, fields, viewer.name, reason, trigger, run_link))
                self._note(store, record, outcome)
        except WaybillError as error:
            return refused(503, f"not done, since it cannot be recorded: {error}")
        return ActionResult(
            action, outcome.is_done, outcome.text, command, outcome.href, back, key, 200 if outcome.is_done else 409
        )

    def _do(self, action: ActionName, order: Order) -> ActionOutcome:
        try:
            return self._operations[action](order)
        except (WaybillError, TriggerRefused) as error:
            return ActionOutcome(False, f"{type(error).__name__}: {error}")
        except Exception as error:
            logger.exception("action %s of %s failed", action, order.by)
            return ActionOutcome(False, f"it failed, and the log of the API server has the cause: {error}")

    def _note(self, store: Store, record: ActionRecord, outcome: ActionOutcome) -> None:
        logger.info("%s by %s: %s: %s", record.command, record.by, record.reason, outcome.text)
        try:
            record_outcome(store, record, outcome)
        except StoreUnavailable as error:
            logger.warning("the outcome of action %s is not stored: %s", record.id, error)
