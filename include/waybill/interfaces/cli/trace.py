"""`waybill trace`: the path of one message from Kafka through the archive to its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import typer

from waybill.base.errors import ConfigError
from waybill.config.names import TopicPartition
from waybill.interfaces.cli.render import Output, bytes_document, time_text_ms
from waybill.interfaces.cli.targets import load_streams
from waybill.tables.quarantine.row_filter import Target
from waybill.watch.trace import Traced, find_places, open_services, trace_message


def run_trace(stream: str, place: str | None, message_id: str | None, *, as_json: bool) -> None:
    """Print the trace of a message; see `waybill trace --help`."""
    if (place is None) == (message_id is None):
        raise ConfigError("give either a message, such as flights/3@1200, or --id")
    config = load_streams()
    config.stream(stream)
    with open_services(config) as services:
        if place is not None:
            places = [_parse(place)]
        else:
            assert message_id is not None
            places = find_places(services, config, stream, message_id)
            if not places:
                raise ConfigError(f"no table of stream {stream!r} has a message with the id {message_id!r}")
        found = [trace_message(services, config, stream, tp, offset) for tp, offset in places]
    Output(as_json).show(found, _print, lambda traces: [_document(each) for each in traces])


def _print(found: Sequence[Traced]) -> None:
    for each in found:
        for line in _lines(each):
            typer.echo(line)


def _parse(text: str) -> tuple[TopicPartition, int]:
    target = Target.parse(text)
    if target.partition is None or target.offset is None:
        raise ConfigError(f"{text!r} names no message: give topic, partition and offset, such as flights/3@1200")
    return TopicPartition(target.topic, target.partition), target.offset


def _document(found: Traced) -> dict[str, Any]:
    return {
        "stream": found.stream,
        "message": f"{found.tp}@{found.offset}",
        "object": None if found.object is None else found.object.key,
        "gap": None if found.gap is None else found.gap.to_fields(),
        "archived": None if found.message is None else _values(found.message),
        "table": found.table or None,
        "quarantined": found.is_quarantined,
        "row": None if found.row is None else _values(found.row),
        "unique": found.is_unique,
        "duplicate_of": None if found.first is None else f"{found.first[0]}@{found.first[1]}",
        "duplicates": [f"{tp}@{offset}" for tp, offset in found.duplicates],
        "faults": list(found.faults),
    }


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes_document(value)
    if isinstance(value, datetime):
        return time_text_ms(value)
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, dict):
        return _values(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _lines(found: Traced) -> list[str]:
    lines = [f"{found.tp}@{found.offset} of {found.stream}"]
    if found.object is not None:
        lines.append(f"  object: {found.object.key}")
    elif found.gap is not None:
        lines.append(f"  in an accepted gap: {found.gap}, by {found.gap.accepted_by}: {found.gap.reason}")
    else:
        lines.append("  not archived")
    if found.message is not None:
        lines += [f"    {name}: {_value(value)}" for name, value in found.message.items() if name != "offset"]
    lines.append(f"  row: in {found.table}" if found.row is not None else "  row: none")
    lines += [f"    {name}: {_value(value)}" for name, value in (found.row or {}).items() if name not in _ORIGIN]
    if found.first is not None:
        lines.append(f"  repeats {found.first[0]}@{found.first[1]}")
    lines += [f"  repeated by {tp}@{offset}" for tp, offset in found.duplicates]
    return [*lines, *(f"  {fault}" for fault in found.faults)]


_ORIGIN = frozenset({"topic", "partition", "offset", "key", "value", "headers"})
"""Columns of a row that repeat the message."""
