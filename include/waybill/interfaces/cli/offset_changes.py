"""`waybill offsets rebuild`, `set` and `import`: change committed offsets by hand.

None of them writes an offset that would leave a gap or an overlap in a chain (`waybill.archive.ingest.offset_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import typer

from waybill.archive.ingest import IngestServices, connect
from waybill.archive.ingest.offset_changes import (
    ImportCheck,
    ImportProposal,
    RebuildResult,
    import_offsets,
    propose_imports,
    rebuild_committed_offset,
    set_committed_offset,
)
from waybill.base.decision import Decision
from waybill.base.errors import ConfigError
from waybill.config.connections import ZooKeeperEndpoint, find_connection
from waybill.config.models import Config, Stream
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition, check_topic
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table
from waybill.interfaces.cli.targets import (
    archived_topic_partitions,
    current_user,
    load_streams,
    make_decision,
    open_coordinator,
    open_store,
    stream_names,
)
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import IMPORT_OFFSETS, REBUILD_OFFSETS, SET_OFFSET

# --- rebuild ----------------------------------------------------------------------------------------------------------


def run_rebuild(stream: str | None, topic: str | None, *, yes: bool, as_json: bool) -> None:
    """Rebuild committed offsets from the chains and print the results; see `waybill offsets rebuild --help`.

    Exits with 1 if an offset in ZooKeeper still differs from its chain.
    """
    config = load_streams()
    if topic is not None:
        check_topic(topic)
    names = stream_names(config, stream)
    decision = Decision("committed offsets that differ are replaced", current_user())
    with logged(config, REBUILD_OFFSETS, decision, {"stream": stream, "topic": topic}) if yes else nullcontext():
        results = [(name, each) for name in names for each in _rebuild(config, name, topic, yes)]
    if as_json:
        print_json([_rebuild_document(name, each) for name, each in results])
    else:
        _print_rebuild_results(results)
    differs = any(each.differs for _, each in results)
    if differs and not yes and not as_json:
        typer.echo("\nOffsets that differ from ZooKeeper's were not written. To write them, add --yes", err=True)
    if differs:
        raise typer.Exit(1)


def _rebuild(config: Config, name: str, topic: str | None, yes: bool) -> list[RebuildResult]:
    generation = config.stream(name).generation
    with open_store(config) as store, open_coordinator(config, name) as coordinator:
        tps = {*archived_topic_partitions(config, name, store), *coordinator.list_committed()}
        return [
            rebuild_committed_offset(store, coordinator, generation, tp, move=yes, by=current_user())
            for tp in sorted(tps)
            if topic in (None, tp.topic)
        ]


def _print_rebuild_results(results: Iterable[tuple[str, RebuildResult]]) -> None:
    columns = [
        PrintedColumn("stream"),
        PrintedColumn("topic-partition"),
        PrintedColumn("committed", figure=True),
        PrintedColumn("chain ends", figure=True),
        PrintedColumn("result"),
    ]
    print_table(
        columns,
        ([name, str(each.tp), count(each.before), count(each.after), _result_text(each)] for name, each in results),
    )


def _result_text(each: RebuildResult) -> str:
    if each.trouble:
        return each.trouble
    if each.written:
        return "written"
    return "NOT written" if each.differs else "correct"


def _rebuild_document(stream: str, each: RebuildResult) -> dict[str, Any]:
    return {
        "stream": stream,
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "before": each.before,
        "after": each.after,
        "written": each.written,
        "trouble": each.trouble,
    }


# --- set --------------------------------------------------------------------------------------------------------------


def run_set(stream: str, target: str, offset: int, reason: str, by: str | None) -> None:
    """Set one committed offset; see `waybill offsets set --help`."""
    config = load_streams()
    chosen = config.stream(stream)
    _refuse_slots(chosen, stream)
    try:
        tp = TopicPartition.parse(target)
    except ValueError as error:
        raise ConfigError(f"{error}: give a topic-partition (flights/3)") from None
    if not chosen.matches(tp.topic):
        raise ConfigError(f"topic {tp.topic!r} does not belong to stream {stream!r}")
    decision = make_decision(reason, by)
    values = {"stream": stream, "topic_partition": tp, "offset": offset}
    with logged(config, SET_OFFSET, decision, values), connect(config, stream) as services:
        committed = set_committed_offset(services, chosen, tp, offset, decision)
    typer.echo(f"the committed offset of {tp} is {committed.committed_offset}: the next backup object starts there")


def _refuse_slots(stream: Stream, name: str) -> None:
    if stream.is_kinesis:
        raise ConfigError(
            f"stream {name!r} is read from Kinesis, whose records have no offsets: Waybill counts them. To start "
            f"elsewhere, set `start`, or use `waybill offsets import {name} --from-kcl TABLE`, before the first run"
        )


# --- import -----------------------------------------------------------------------------------------------------------


def run_import(
    stream: str,
    *,
    from_secor: str | None,
    group: str | None,
    zookeeper: str | None,
    from_group: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Start chains at another tool's offsets; see `waybill offsets import --help`."""
    if (from_secor is None) == (from_group is None):
        raise ConfigError("give the source of the offsets: either --from-secor PATH or --from-group GROUP")
    if from_secor is None and (group or zookeeper):
        raise ConfigError("--group and --zookeeper can only be used together with --from-secor")
    config = load_streams()
    chosen = config.stream(stream)
    _refuse_slots(chosen, stream)
    if from_secor is not None:
        origin = f"Secor's offsets at {from_secor}"
        offsets = _secor_offsets(config, stream, from_secor, group, zookeeper)
    else:
        origin = f"consumer group {from_group}"
        offsets = {}
    with connect(config, stream) as services:
        if from_group is not None:
            offsets = services.kafka.group_offsets(from_group, services.source.topic_partitions(chosen))
        proposals = propose_imports(services, chosen, offsets)
        failures = _import(services, config, stream, proposals, origin) if yes else {}
    if as_json:
        print_json([_proposal_document(each, done=yes, failures=failures) for each in proposals])
    else:
        _print_proposals(proposals, chosen.start, done=yes, failures=failures)
    if failures:
        raise typer.Exit(1)


def _secor_offsets(
    config: Config, stream: str, path: str, group: str | None, zookeeper: str | None
) -> dict[TopicPartition, int]:
    from waybill.services.kafka.secor import read_secor_offsets

    endpoint = ZooKeeperEndpoint.of(find_connection(zookeeper or config.zookeeper.connection))
    # For Waybill's own connection, Secor's path is absolute, since the chroot belongs to Waybill. For a connection of
    # --zookeeper, the path is below its chroot, which belongs to Secor.
    path = f"{endpoint.chroot}/{path.strip('/')}" if zookeeper and endpoint.chroot else path
    return read_secor_offsets(endpoint, path, group, config.stream(stream).matches)


def _import(
    services: IngestServices, config: Config, stream: str, proposals: list[ImportProposal], origin: str
) -> dict[TopicPartition, str]:
    """Import the offsets, and return the error message of each topic-partition that failed."""
    decision = Decision(f"imported from {origin}", current_user())
    with logged(config, IMPORT_OFFSETS, decision, {"stream": stream}):
        results = import_offsets(services, config.stream(stream), proposals, decision)
        return {proposal.tp: trouble for proposal, trouble in results if trouble}


def _print_proposals(
    proposals: list[ImportProposal], start: object, *, done: bool, failures: dict[TopicPartition, str]
) -> None:
    columns = [
        PrintedColumn("topic-partition"),
        PrintedColumn("its offset", figure=True),
        PrintedColumn("Kafka holds from", figure=True),
        PrintedColumn("to", figure=True),
        PrintedColumn("result" if done else "effect of --yes"),
    ]
    print_table(columns, (_cells(each, done=done, failures=failures) for each in proposals))
    importable = sum(each.check is ImportCheck.IMPORT for each in proposals)
    without_offset = sum(each.check in (ImportCheck.OUTSIDE, ImportCheck.NO_OFFSET) for each in proposals)
    if without_offset:
        typer.echo(
            f"\n{counted(without_offset, 'topic-partition')} without a usable offset: the next run starts the chain at "
            f"the first message in Kafka if another partition of the topic has a chain already, else as the config "
            f"defines (start: {start}). To start elsewhere, use `waybill offsets set` before that run"
        )
    if importable and not done:
        typer.echo(f"\nNothing was written. To start {counted(importable, 'chain')} at these offsets, add --yes")


def _cells(each: ImportProposal, *, done: bool, failures: dict[TopicPartition, str]) -> list[str]:
    return [
        str(each.tp),
        count(each.offset),
        count(each.log_range.earliest if each.log_range else None),
        count(each.log_range.end if each.log_range else None),
        failures.get(each.tp) or ("imported" if done and each.check is ImportCheck.IMPORT else str(each.check)),
    ]


def _proposal_document(each: ImportProposal, *, done: bool, failures: dict[TopicPartition, str]) -> dict[str, Any]:
    return {
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "offset": each.offset,
        "earliest_offset": each.log_range.earliest if each.log_range else None,
        "end_offset": each.log_range.end if each.log_range else None,
        "verdict": each.check.name.lower(),
        "imported": done and each.check is ImportCheck.IMPORT and each.tp not in failures,
        "trouble": failures.get(each.tp, ""),
    }
