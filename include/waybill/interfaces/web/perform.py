"""Execute the operations for the pages: call the functions of the commands, or trigger a DAG run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress

from waybill.base.errors import ConfigError, CoordinationUnavailable
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName
from waybill.interfaces.operations.here import acknowledge, decide_pause
from waybill.interfaces.web.actions import Order, Perform
from waybill.services.coordination import PauseAction, ZooKeeperSession
from waybill.services.store import Store
from waybill.watch.incidents.book_store import BookStore
from waybill.watch.promises.action_log import ActionOutcome

# --- done by this process ---------------------------------------------------------------------------------------------


def _acknowledge(order: Order) -> ActionOutcome:
    """Acknowledge an incident, as `waybill incidents ack` does."""
    with ExitStack() as stack:
        store = stack.enter_context(Store.of(order.config.storage))
        session = None
        with suppress(CoordinationUnavailable):  # the copy in S3 is then used, as by the command
            session = stack.enter_context(ZooKeeperSession.of(order.config))
        books = BookStore(order.config.zookeeper.root, session, store)
        found = acknowledge(books, order.fields["incident"], order.decision)
    by = order.decision.by if found.acknowledged is None else found.acknowledged.by
    return ActionOutcome(True, f"{found.id} is acknowledged by {by}: no reminders, and no escalation")


def _pause(order: Order) -> ActionOutcome:
    return _decide_pause(order, PauseAction.PAUSE, "paused")


def _resume(order: Order) -> ActionOutcome:
    return _decide_pause(order, PauseAction.RESUME, "resumed")


def _decide_pause(order: Order, action: PauseAction, done: str) -> ActionOutcome:
    """Pause or resume all stages, as `waybill pause` and `waybill resume` do."""
    name = order.fields["stream"]
    pause, _ = decide_pause(order.config, name, action, (), order.decision)
    return ActionOutcome(True, f"{name}: {', '.join(sorted(pause.stages))} {done}")


def _accept_gap(order: Order) -> ActionOutcome:
    """Accept a gap at the end of a chain, as `waybill gaps accept` does."""
    from waybill.archive.ingest import connect
    from waybill.archive.ingest.gap_acceptance import SeenGap, accept_gap

    order.operation.check(order.fields)
    name = order.fields["stream"]
    stream, tp = order.config.stream(name), TopicPartition(order.fields["topic"], int(order.fields["partition"]))
    if not stream.matches(tp.topic):
        raise ConfigError(f"topic {tp.topic!r} does not belong to stream {name!r}")
    seen = SeenGap.parse(order.fields["within"])
    with connect(order.config, name) as services:
        accepted = accept_gap(services, stream, tp, order.decision, seen=seen)
    lost = sum(gap.messages_at_most for gap in accepted.gaps)
    gaps = "; ".join(str(gap) for gap in accepted.gaps)
    return ActionOutcome(
        True,
        f"accepted: {gaps}, up to {counted(lost, 'message')}; ingest resumes at offset {accepted.committed_offset}",
    )


# --- done by a DAG run ------------------------------------------------------------------------------------------------


def _order_run(order: Order) -> ActionOutcome:
    """Trigger the DAG of the operation, with the values of the form."""
    order.operation.check(order.fields)
    order.config.stream(order.fields["stream"])  # an unknown stream is an error of this action, not of a later run
    assert order.operation.runs is not None
    dag = order.operation.runs.dag
    order.trigger(dag, order.operation.form_of_run(order.fields, order.decision.reason), order.run)
    return ActionOutcome(True, f"ordered: run {order.run} of DAG {dag}", order.run_link(dag, order.run), dag, order.run)


PERFORM: Mapping[OperationName, Perform] = {
    **{name: _order_run for name, each in PAGE_OPERATIONS.items() if each.runs is not None},
    OperationName.ACKNOWLEDGE: _acknowledge,
    OperationName.PAUSE: _pause,
    OperationName.RESUME: _resume,
    OperationName.ACCEPT_GAP: _accept_gap,
}
