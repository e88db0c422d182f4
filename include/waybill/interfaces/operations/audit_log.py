"""The one log of decisions: who, what, when, why, through which surface, and the outcome.

The log itself is `waybill.watch.promises.action_log`. The pages show it, and `waybill decisions` prints it. Each
surface appends the same record, made by `record_of`:

- A page refuses an action whose record cannot be stored (`waybill.interfaces.web.actions`).
- A command goes on with a warning, so that people can still work in a terminal while S3 hangs. The decision itself is
  stored in its usual place.
- A DAG run that a person triggered logs itself as ordered, as a page does when it triggers a run. The watch then
  requests the state of the run from Airflow. A run that a page has ordered already has a record.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from waybill.base.decision import Decision
from waybill.base.errors import expected
from waybill.config.models import Config
from waybill.interfaces.operations.declaration import Operation
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

_T = TypeVar("_T")
_ORDERED = "manual__waybill-"


def record_of(
    place: ActionPlace, operation: Operation, decision: Decision, values: Mapping[str, object]
) -> ActionRecord:
    """Return the record of a decision to execute an operation. `values`: the values of its parameters, by name."""
    return ActionRecord.of(
        place,
        decision.at_ms,
        decision.by,
        operation.name,
        operation.arguments_of(values),
        decision.reason,
        operation.command_line(values, decision.reason, decision.by),
        decision.surface,
    )


def run_ordered_at(place: ActionPlace) -> str:
    """Return the id of the DAG run that a page orders with the action of this place."""
    return f"{_ORDERED}{place}"


# --- in a terminal ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Done:
    """The outcome of a decision; the command can set the text."""

    text: str = "done"


@contextmanager
def logged(config: Config, operation: Operation, decision: Decision, values: Mapping[str, object]) -> Iterator[Done]:
    """Log a decision before the block executes it, and the outcome after the block.

    If an exception ends the block, the outcome is a failure; if a signal ends it, there is no outcome.
    """
    place = ActionPlace(decision.at_ms, secrets.token_hex(12))
    record = record_of(place, operation, decision, values)
    with ExitStack() as stack:
        store = _log(lambda: stack.enter_context(Store.of(config.storage)))
        if store is not None and _log(partial(record_action, store, record)) is None:
            store = None  # the outcome cannot be stored either
        done = Done()
        try:
            yield done
        except Exception as error:
            failure = ActionOutcome(False, f"{type(error).__name__}: {error}")
            if store is not None:
                _log(partial(record_outcome, store, record, failure))
            raise
        if store is not None:
            _log(partial(record_outcome, store, record, ActionOutcome(True, done.text)))


# --- in a DAG run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggeredRun:
    """A DAG run that a person triggered."""

    dag: str
    id: str
    at: datetime
    """The planned start; the same in each try of a task."""
    href: str
    """Its address in Airflow's UI."""

    @property
    def place(self) -> ActionPlace:
        """The place of its record: each try of a task finds the record of the first."""
        identifier = hashlib.sha256(f"{self.dag} {self.id}".encode()).hexdigest()[:24]
        return ActionPlace(int(self.at.timestamp() * 1000), identifier)


def log_run(
    config: Config, run: TriggeredRun, operation: Operation, decision: Decision, values: Mapping[str, object]
) -> None:
    """Log a DAG run that executes an operation, unless a page ordered it, or an earlier try has logged it."""
    record = record_of(run.place, operation, decision, values)
    outcome = ActionOutcome(True, f"ordered: run {run.id} of DAG {run.dag}", run.href, run.dag, run.id)

    def append() -> None:
        with Store.of(config.storage) as store:
            ordered = ActionPlace.parse(run.id.removeprefix(_ORDERED)) if run.id.startswith(_ORDERED) else None
            if ordered is None or find_action(store, ordered) is None:
                record_action(store, record)
                record_outcome(store, record, outcome)

    _log(append)


def _log(write: Callable[[], _T]) -> _T | None:
    """Return the result of `write`; if the log cannot be written, log a warning and return None."""
    try:
        return write()
    except Exception as error:
        logger.warning("the decision is not in the log of decisions: %s", expected("the log", error))
        return None
