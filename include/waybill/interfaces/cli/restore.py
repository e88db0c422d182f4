"""`waybill restore`: plan, run, status, verify, and the offsets of consumer groups."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import typer

from waybill.archive.restore import (
    GroupMove,
    PartitionResult,
    RestorePlan,
    RestoreRequest,
    RestoreStatus,
    begin_restore,
    compare_restore,
    find_plan,
    list_plans,
    move_groups,
    preview_restore,
    read_status,
)
from waybill.archive.restore import run_restore as run_restore_of
from waybill.base.errors import RestoreRefused, UnexpectedFailure, WaybillError
from waybill.config.connections import KafkaEndpoint, find_connection
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.interfaces.cli.render import (
    Output,
    PrintedColumn,
    TableColumn,
    bytes_text,
    count,
    print_json,
    print_rows,
    print_table,
    time_text,
)
from waybill.interfaces.cli.targets import load_streams, make_decision, open_store
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import RESTORE
from waybill.watch.ledger.signature import read_signing_key, sign

logger = logging.getLogger(__name__)

_KAFKA_TIMEOUT = timedelta(seconds=10)


def run_plan(request: RestoreRequest, *, as_json: bool) -> None:
    """Print the preview of a restore. Exit with 1 if the preflight refuses it."""
    preview = preview_restore(load_streams(), request)
    if as_json:
        print_json(
            {
                "possible": preview.is_possible,
                "creates": {name: dict(each.topic.own_config) for name, each in preview.creations.items()},
                "problems": [{"what": p.what, "remedy": p.remedy, "warning": p.is_warning} for p in preview.problems],
                "partitions": [
                    {
                        "source": str(each.tp),
                        "target": f"{request.target_of(each.tp.topic)}/{each.tp.partition}",
                        "first_offset": each.first_offset,
                        "next_offset": each.next_offset,
                        "objects": len(each.objects),
                        "size_bytes": each.size_bytes,
                    }
                    for each in preview.ranges
                ],
            }
        )
    else:
        print_table(
            [
                PrintedColumn("from"),
                PrintedColumn("to"),
                PrintedColumn("offsets"),
                PrintedColumn("objects", figure=True),
                PrintedColumn("bytes", figure=True),
            ],
            [
                [
                    str(each.tp),
                    f"{request.target_of(each.tp.topic)}/{each.tp.partition}",
                    f"{each.first_offset}–{each.next_offset - 1}",
                    count(len(each.objects)),
                    bytes_text(each.size_bytes),
                ]
                for each in preview.ranges
            ],
        )
        for problem in preview.problems:
            typer.echo(f"{'warning' if problem.is_warning else 'refused'}: {problem}", err=True)
    if not preview.is_possible:
        raise typer.Exit(1)


def begin(request: RestoreRequest, reason: str, by: str | None, *, as_json: bool) -> str:
    """Store the plan of a restore and return its id."""
    decision = make_decision(reason, by)
    config = load_streams()
    values = {
        "stream": request.stream,
        "to": request.connection,
        "to_topic": request.to_topic,
        "topic_partitions": request.topic_partitions,
        "create": request.create,
        "suspend_cleanup": request.suspend_cleanup,
        "registry": request.registry,
    }
    with logged(config, RESTORE, decision, values) as done:
        plan = begin_restore(config, request, by=decision.by, reason=decision.reason)
        done.text = f"restore {plan.id} has begun"
    for warning in plan.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if not as_json:
        typer.echo(f"restore {plan.id} begins; if it is interrupted: waybill restore run --id {plan.id}")
    return plan.id


def run_restore(restore: str, *, as_json: bool) -> None:
    """Execute a restore. SIGTERM and SIGINT end it after all sent messages are acknowledged, with exit code 1."""
    stop = threading.Event()
    with _stopping(stop):
        results = run_restore_of(load_streams(), restore, should_stop=stop.is_set)
    if as_json:
        print_json({"restore": restore, "stopped": stop.is_set(), "partitions": [_result(each) for each in results]})
    else:
        _print_results(restore, results, stopped=stop.is_set())
    if not all(each.is_complete for each in results):
        raise typer.Exit(1)


class _stopping:  # noqa: N801 - used like a function
    """Sets an event at SIGTERM and SIGINT while it is open."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError):  # not the main thread, as in tests
                self._before[number] = signal.signal(number, lambda *_: self._stop.set())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _result(result: PartitionResult) -> dict[str, Any]:
    return {
        "source": str(result.plan.source),
        "target": str(result.plan.target),
        "resumed_at": result.resumed_at,
        "target_end": result.target_end,
        "next_offset": result.next_offset,
        "messages": result.messages,
        "batches": result.batches,
        "encoded_batches": result.encoded_batches,
        "complete": result.is_complete,
        "error": None if result.error is None else str(result.error),
    }


def _print_results(restore: str, results: Sequence[PartitionResult], *, stopped: bool) -> None:
    columns = [
        PrintedColumn("from"),
        PrintedColumn("to"),
        PrintedColumn("messages", figure=True),
        PrintedColumn("batches", figure=True),
        PrintedColumn("encoded", figure=True),
        PrintedColumn("target end", figure=True),
        PrintedColumn("state"),
    ]
    rows = [
        [
            str(each.plan.source),
            str(each.plan.target),
            count(each.messages),
            count(each.batches),
            count(each.encoded_batches),
            "" if each.target_end is None else str(each.target_end),
            _state_of(each),
        ]
        for each in results
    ]
    print_table(columns, rows)
    for each in results:
        if each.error is not None:
            typer.echo(f"error: {each.error}", err=True)
    if all(each.is_complete for each in results):
        typer.echo(f"everything is restored; compare it: waybill restore verify {restore}")
    else:
        why = "stopped by a signal" if stopped else "not complete"
        typer.echo(f"{why}; continue with: waybill restore run --id {restore}", err=True)


def _state_of(result: PartitionResult) -> str:
    if result.is_complete:
        return "complete"
    if result.error is not None:
        return "error"
    return "not begun" if result.next_offset is None else f"stopped before offset {result.next_offset}"


def print_status(restore: str | None, *, as_json: bool) -> None:
    """Print the progress of one restore by topic-partition, or a line for each restore."""
    config = load_streams()
    with open_store(config) as store:
        plans = list(list_plans(store)) if restore is None else [find_plan(store, restore)]
        found = [(plan, _status_of(store, plan)) for plan in plans]
    show = partial(_print_statuses, restore)
    Output(as_json).show(found, show, lambda statuses: [_status_document(*each) for each in statuses])


_Status = tuple[RestorePlan, RestoreStatus | str]

_STATUSES: tuple[TableColumn[_Status], ...] = (
    TableColumn("id", lambda each: each[0].id),
    TableColumn("stream", lambda each: each[0].stream),
    TableColumn("to", lambda each: each[0].connection),
    TableColumn("state", lambda each: _text_of(each[1])),
    TableColumn("by", lambda each: each[0].by),
    TableColumn("begun", lambda each: time_text(each[0].at)),
    TableColumn("reason", lambda each: each[0].reason),
)


def _print_statuses(restore: str | None, found: Sequence[_Status]) -> None:
    if not found:
        typer.echo("there is no restore", err=True)
    elif restore is None:
        print_rows(_STATUSES, found)
    else:
        _print_partitions(*found[0])


def _status_of(store: Any, plan: RestorePlan) -> RestoreStatus | str:
    try:
        return read_status(store, plan)
    except WaybillError as error:
        return str(error)
    except Exception as error:  # the other restores are still listed
        failure = UnexpectedFailure(f"the state of restore {plan.id}", error)
        logger.exception("%s", failure)
        return str(failure)


def _text_of(status: RestoreStatus | str) -> str:
    if isinstance(status, str):
        return f"unknown: {status}"
    return "complete" if status.is_complete else "not complete"


def _print_partitions(plan: RestorePlan, status: RestoreStatus | str) -> None:
    if isinstance(status, str):
        typer.echo(status, err=True)
        raise typer.Exit(1)
    columns = [
        PrintedColumn("from"),
        PrintedColumn("to"),
        PrintedColumn("offsets"),
        PrintedColumn("messages in the target", figure=True),
    ]
    rows = [
        [str(each.source), str(each.target), f"{each.first_offset}–{each.next_offset - 1}", _messages(status, each)]
        for each in plan.partitions
    ]
    print_table(columns, rows)
    for warning in plan.warnings:
        typer.echo(f"warning: {warning}")
    typer.echo(_text_of(status))


def _messages(status: RestoreStatus, partition: Any) -> str:
    messages = status.messages(partition)
    return ("" if status.is_complete else "no answer") if messages is None else count(messages)


def _status_document(plan: RestorePlan, status: RestoreStatus | str) -> dict[str, Any]:
    document: dict[str, Any] = {**plan.document(), "state": _text_of(status)}
    if isinstance(status, RestoreStatus):
        for each, partition in zip(document["partitions"], plan.partitions, strict=True):
            each["messages"] = status.messages(partition)
    return document


def run_verify(restore: str, sign_with: str | None, *, as_json: bool) -> None:
    """Compare a restore with the archive, and print the report."""
    key = None if sign_with is None else read_signing_key(find_connection(sign_with))
    report = compare_restore(load_streams(), restore)
    if as_json or key is not None:
        print_json(report if key is None else sign(report, key, "report"))
    else:
        columns = [
            PrintedColumn("from"),
            PrintedColumn("to"),
            PrintedColumn("equal messages", figure=True),
            PrintedColumn("result"),
        ]
        rows = [
            [each["source"], each["target"], count(each["messages"]), each["difference"] or "equal"]
            for each in report["partitions"]
        ]
        print_table(columns, rows)
        typer.echo("not checked: " + "; ".join(report["not_checked"]))
    if not report["sound"]:
        raise typer.Exit(1)


def run_groups(
    restore: str, groups: Sequence[str], offsets_file: Path | None, *, commit: bool, backwards: bool, as_json: bool
) -> None:
    """Print where consumer groups continue in the target, and commit these offsets if requested."""
    config = load_streams()
    offsets = _offsets_of_groups(config, restore, groups, offsets_file)
    moves = move_groups(config, restore, offsets, commit=commit, backwards=backwards)
    Output(as_json).show(moves, partial(print_rows, _MOVES))


_MOVES: tuple[TableColumn[GroupMove], ...] = (
    TableColumn("group", lambda each: each.group),
    TableColumn("from", lambda each: str(each.source)),
    TableColumn("offset", lambda each: str(each.source_offset), figure=True),
    TableColumn("to", lambda each: str(each.target)),
    TableColumn("present", lambda each: "" if each.present_offset is None else str(each.present_offset), figure=True),
    TableColumn("continues at", lambda each: str(each.target_offset), figure=True),
    TableColumn("state", lambda each: str(each.state)),
)


def _offsets_of_groups(
    config: Config, restore: str, groups: Sequence[str], offsets_file: Path | None
) -> Mapping[str, Mapping[TopicPartition, int]]:
    """Return the committed offsets of the groups, from a file or the source cluster."""
    if (offsets_file is None) == (not groups):
        raise RestoreRefused("give the consumer groups with --group, or their offsets with --offsets-from FILE")
    if offsets_file is not None:
        return _read_offsets(offsets_file)
    from waybill.services.kafka.kafka import KafkaSource

    with open_store(config) as store:
        tps = [each.source for each in find_plan(store, restore).partitions]
    endpoint = KafkaEndpoint.of(find_connection(config.kafka.connection))
    with KafkaSource(endpoint, retry_timeout=_KAFKA_TIMEOUT) as source:
        return {group: source.group_offsets(group, tps) for group in groups}


def _read_offsets(file: Path) -> dict[str, dict[TopicPartition, int]]:
    try:
        document = json.loads(file.read_text())
        return {
            str(group): {TopicPartition.parse(tp): int(offset) for tp, offset in offsets.items()}
            for group, offsets in document.items()
        }
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RestoreRefused(
            f'{file} does not hold the offsets of groups, {{"group": {{"topic/partition": offset}}}}: {error}'
        ) from error
