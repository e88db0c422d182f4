"""`waybill offsets rebuild`, `set` and `import`: committed offsets set by hand, and never so that a chain tears."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from waybill.archive.gaps import Decision
from waybill.cli.objects import stream_chains
from waybill.cli.render import Column, count, print_json, print_table
from waybill.cli.targets import decision, open_coordinator, open_store, stream_names, whoever_is_typing
from waybill.config import Config, load_config
from waybill.connections import ZooKeeperEndpoint, connection
from waybill.errors import ConfigError
from waybill.ingest import Services, connect
from waybill.ingest.offset_changes import Proposal, Rebuilt, Verdict, propose, rebuild, set_offset, take_over
from waybill.names import TopicPartition, check_topic

__all__ = ["run_import", "run_rebuild", "run_set"]


# --- rebuild ----------------------------------------------------------------------------------------------------------


def run_rebuild(stream: str | None, topic: str | None, *, yes: bool, as_json: bool) -> None:
    """Rebuild, print, and exit with 1 if anything is left open; see `waybill offsets rebuild --help`."""
    config = load_config()
    if topic is not None:
        check_topic(topic)
    found = [(name, each) for name in stream_names(config, stream) for each in _rebuilt(config, name, topic, yes)]
    if as_json:
        print_json([_rebuilt_document(name, each) for name, each in found])
    else:
        _print_rebuilt(found)
    is_open = [each for _, each in found if each.is_open]
    if is_open and not yes and not as_json:
        typer.echo("\nwhere ZooKeeper has another offset, nothing was written: with --yes it is", err=True)
    if is_open:
        raise typer.Exit(1)


def _rebuilt(config: Config, name: str, topic: str | None, yes: bool) -> list[Rebuilt]:
    generation = config.stream(name).generation
    with open_store(config) as store, open_coordinator(config, name) as coordinator:
        tps = {*stream_chains(config, name, store), *coordinator.list_committed()}
        return [
            rebuild(store, coordinator, generation, tp, move=yes, by=whoever_is_typing())
            for tp in sorted(tps)
            if topic in (None, tp.topic)
        ]


def _print_rebuilt(found: Iterable[tuple[str, Rebuilt]]) -> None:
    columns = [
        Column("stream"),
        Column("topic-partition"),
        Column("committed", figure=True),
        Column("chain ends", figure=True),
        Column("result"),
    ]
    print_table(
        columns,
        ([name, str(each.tp), count(each.before), count(each.after), _result(each)] for name, each in found),
    )


def _result(each: Rebuilt) -> str:
    if each.trouble:
        return each.trouble
    if each.written:
        return "written"
    return "NOT written" if each.is_open else "right"


def _rebuilt_document(stream: str, each: Rebuilt) -> dict[str, Any]:
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
    config = load_config()
    chosen = config.stream(stream)
    try:
        tp = TopicPartition.parse(target)
    except ValueError as error:
        raise ConfigError(f"{error}: give a topic-partition (flights/3)") from None
    if not chosen.matches(tp.topic):
        raise ConfigError(f"topic {tp.topic!r} does not belong to stream {stream!r}")
    with connect(config, stream) as services:
        found = set_offset(services, chosen, tp, offset, decision(reason, by))
    typer.echo(f"the committed offset of {tp} is {found.committed_offset}: the next backup object starts there")


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
    """Take another tool's offsets over; see `waybill offsets import --help`."""
    if (from_secor is None) == (from_group is None):
        raise ConfigError("say where the offsets come from: --from-secor PATH, or --from-group GROUP")
    if from_secor is None and (group or zookeeper):
        raise ConfigError("--group and --zookeeper belong to --from-secor")
    config = load_config()
    chosen = config.stream(stream)
    if from_secor is not None:
        origin = f"Secor's offsets at {from_secor}"
        offsets = _secor_offsets(config, stream, from_secor, group, zookeeper)
    else:
        origin = f"consumer group {from_group}"
        offsets = {}
    with connect(config, stream) as services:
        if from_group is not None:
            offsets = services.source.group_offsets(from_group, services.source.topic_partitions(chosen))
        proposals = propose(services, chosen, offsets)
        failures = _carry_out(services, config, stream, proposals, origin) if yes else {}
    if as_json:
        print_json([_proposal_document(each, done=yes, failures=failures) for each in proposals])
    else:
        _print_proposals(proposals, chosen.start, done=yes, failures=failures)
    if failures:
        raise typer.Exit(1)


def _secor_offsets(
    config: Config, stream: str, path: str, group: str | None, zookeeper: str | None
) -> dict[TopicPartition, int]:
    from waybill.sources.secor import read_secor_offsets

    endpoint = ZooKeeperEndpoint.of(connection(zookeeper or config.zookeeper.connection))
    # Our own connection's chroot is where Waybill's nodes are; Secor's are beside it. Another one's is Secor's.
    path = f"{endpoint.chroot}/{path.strip('/')}" if zookeeper and endpoint.chroot else path
    return read_secor_offsets(endpoint, path, group, config.stream(stream).matches)


def _carry_out(
    services: Services, config: Config, stream: str, proposals: list[Proposal], origin: str
) -> dict[TopicPartition, str]:
    imported = Decision(f"imported from {origin}", whoever_is_typing())
    done = take_over(services, config.stream(stream), proposals, imported)
    return {proposal.tp: trouble for proposal, trouble in done if trouble}


def _print_proposals(
    proposals: list[Proposal], start: object, *, done: bool, failures: dict[TopicPartition, str]
) -> None:
    columns = [
        Column("topic-partition"),
        Column("its offset", figure=True),
        Column("Kafka holds from", figure=True),
        Column("to", figure=True),
        Column("result" if done else "what --yes does"),
    ]
    print_table(columns, (_cells(each, done=done, failures=failures) for each in proposals))
    wanted = [each for each in proposals if each.verdict is Verdict.IMPORT]
    begins = [each for each in proposals if each.verdict in (Verdict.OUTSIDE, Verdict.NO_OFFSET)]
    if begins:
        typer.echo(
            f"\n{count(len(begins))} without an offset of use begin at the next run, at their first message where "
            f"another partition of the topic was begun before, else as the config says (start: {start}); or where "
            f"`waybill offsets set` says until then"
        )
    if wanted and not done:
        typer.echo(f"\nnothing was written: with --yes the chains of {count(len(wanted))} topic-partitions begin there")


def _cells(each: Proposal, *, done: bool, failures: dict[TopicPartition, str]) -> list[str]:
    return [
        str(each.tp),
        count(each.offset),
        count(each.held.earliest if each.held else None),
        count(each.held.end if each.held else None),
        failures.get(each.tp) or ("imported" if done and each.verdict is Verdict.IMPORT else str(each.verdict)),
    ]


def _proposal_document(each: Proposal, *, done: bool, failures: dict[TopicPartition, str]) -> dict[str, Any]:
    return {
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "offset": each.offset,
        "earliest_offset": each.held.earliest if each.held else None,
        "end_offset": each.held.end if each.held else None,
        "verdict": each.verdict.name.lower(),
        "imported": done and each.verdict is Verdict.IMPORT and each.tp not in failures,
        "trouble": failures.get(each.tp, ""),
    }
