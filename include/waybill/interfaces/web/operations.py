"""What each action does: the functions that the commands call, or a DAG run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from waybill.archive.chain.gaps import DecisionRecord
from waybill.base.errors import ConfigError, CoordinationUnavailable
from waybill.config.models.quantities import counted, whole_number
from waybill.config.names import MAX_PARTITION, TopicPartition
from waybill.interfaces.web.actions import Operation, Order
from waybill.interfaces.web.forms import ActionName
from waybill.services.coordination import Pause, PauseAction, Stage, ZooKeeperSession, read_pauses
from waybill.services.store import Store
from waybill.watch.incidents import rules
from waybill.watch.incidents.book_store import BookStore
from waybill.watch.incidents.incident import Acknowledgement
from waybill.watch.promises.action_log import ActionOutcome

RETRY_DAG, BACKFILL_DAG, DECISION_DAG = "quarantine_retry", "backfill", "quality_decision"
UNDO_DAG = "backfill_undo"


# --- done by this process ---------------------------------------------------------------------------------------------


def _acknowledge(order: Order) -> ActionOutcome:
    """Do what `waybill incidents ack` does."""
    incident = order.fields["incident"]
    acknowledgement = Acknowledgement(order.by, int(time.time() * 1000), order.reason)
    with ExitStack() as stack:
        store = stack.enter_context(Store.of(order.config.storage))
        session = None
        with suppress(CoordinationUnavailable):  # the copy in S3 then takes its place, as for the command
            session = stack.enter_context(ZooKeeperSession.of(order.config))
        books = BookStore(order.config.zookeeper.root, session, store)
        if books.load().find(incident) is None:
            raise ConfigError(f"no incident {incident!r}: it was resolved more than 30 days ago, or never was")
        book = books.change(lambda stored: rules.acknowledge(stored, incident, acknowledgement))
    found = book.find(incident)
    by = order.by if found is None or found.acknowledged is None else found.acknowledged.by
    return ActionOutcome(True, f"{incident} is acknowledged by {by}: no reminders, and no escalation")


def _pause(order: Order) -> ActionOutcome:
    return _decide_pause(order, PauseAction.PAUSE)


def _resume(order: Order) -> ActionOutcome:
    return _decide_pause(order, PauseAction.RESUME)


def _decide_pause(order: Order, action: PauseAction) -> ActionOutcome:
    """Do what `waybill pause` and `waybill resume` do, for all stages."""
    name, root = order.fields["stream"], order.config.zookeeper.root
    stream = order.config.stream(name)
    existing = {stage for stage in Stage if stream.section(stage) is not None}
    with ZooKeeperSession.of(order.config) as session:
        before = read_pauses(session, root, [name])[name]
        stages = frozenset(existing if action is PauseAction.PAUSE else before.active())
        before.decide(session, root, name, Pause(action, stages, order.by, int(time.time() * 1000), order.reason))
    done = "paused" if action is PauseAction.PAUSE else "resumed"
    return ActionOutcome(True, f"{name}: {', '.join(sorted(stages))} {done}")


def _accept_gap(order: Order) -> ActionOutcome:
    """Do what `waybill gaps accept` does for a gap at the end of a chain."""
    from waybill.archive.ingest import connect
    from waybill.archive.ingest.gap_acceptance import SeenGap, accept_gap

    name, partition = order.fields["stream"], order.fields["partition"]
    number = whole_number(partition, MAX_PARTITION)
    if number is None:
        raise ConfigError(f"{partition!r} is no partition: give a whole number up to {MAX_PARTITION:,}")
    stream, tp = order.config.stream(name), TopicPartition(order.fields["topic"], number)
    if not stream.matches(tp.topic):
        raise ConfigError(f"topic {tp.topic!r} does not belong to stream {name!r}")
    seen = SeenGap.parse(order.fields["within"])
    with connect(order.config, name) as services:
        accepted = accept_gap(services, stream, tp, DecisionRecord(order.reason, order.by), seen=seen)
    lost = sum(gap.messages_at_most for gap in accepted.gaps)
    gaps = "; ".join(str(gap) for gap in accepted.gaps)
    return ActionOutcome(
        True,
        f"accepted: {gaps}, up to {counted(lost, 'message')}; ingest resumes at offset {accepted.committed_offset}",
    )


# --- done by a DAG run ------------------------------------------------------------------------------------------------


def _release(order: Order) -> ActionOutcome:
    return _decide_hold(order, "release")


def _reject(order: Order) -> ActionOutcome:
    return _decide_hold(order, "reject")


def _decide_hold(order: Order, decision: str) -> ActionOutcome:
    stream, plan = order.fields["stream"], order.fields["plan"]
    if not plan:
        raise ConfigError(f"the form names no plan: look at `waybill quality show {stream}`, and decide with a command")
    form = {"stream": stream, "decision": decision, "plan": plan, "reason": order.reason}
    return _triggered(order, DECISION_DAG, form)


def _retry(order: Order) -> ActionOutcome:
    fields = order.fields
    form = {
        "stream": fields["stream"],
        "reasons": [fields["kind"]] if fields["kind"] else [],
        "topic_partitions": [fields["topic"]] if fields["topic"] else [],
    }
    return _triggered(order, RETRY_DAG, form)


def _change_backfill(order: Order, action: str) -> ActionOutcome:
    form = {
        "action": action,
        "stream": order.fields["stream"],
        "backfill": order.fields["backfill"],
        "reason": order.reason,
    }
    return _triggered(order, BACKFILL_DAG, form)


def _promote(order: Order) -> ActionOutcome:
    return _change_backfill(order, "promote")


def _undo(order: Order) -> ActionOutcome:
    form = {"stream": order.fields["stream"], "backfill": order.fields["backfill"], "reason": order.reason}
    return _triggered(order, UNDO_DAG, form)


def _cancel(order: Order) -> ActionOutcome:
    return _change_backfill(order, "cancel")


def _triggered(order: Order, dag: str, form: Mapping[str, object]) -> ActionOutcome:
    order.config.stream(order.fields["stream"])  # an unknown stream is an error of this action, not of a later run
    order.trigger(dag, form, order.run)
    return ActionOutcome(True, f"ordered: run {order.run} of DAG {dag}", order.run_link(dag, order.run), dag, order.run)


OPERATIONS: Mapping[ActionName, Operation] = {
    ActionName.ACKNOWLEDGE: _acknowledge,
    ActionName.RELEASE: _release,
    ActionName.REJECT: _reject,
    ActionName.RETRY: _retry,
    ActionName.PAUSE: _pause,
    ActionName.RESUME: _resume,
    ActionName.PROMOTE: _promote,
    ActionName.UNDO: _undo,
    ActionName.CANCEL: _cancel,
    ActionName.ACCEPT_GAP: _accept_gap,
}
