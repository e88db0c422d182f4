"""`waybill quarantine`: list, show and retry the messages that could not be parsed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any

import orjson
import typer

from waybill.base.decision import Decision
from waybill.base.errors import ConfigError
from waybill.config.models.quantities import counted
from waybill.interfaces.cli.render import (
    PrintedColumn,
    bytes_document,
    bytes_text,
    count,
    print_json,
    print_table,
    time_text,
    time_text_ms,
)
from waybill.interfaces.cli.targets import current_user, load_streams, make_decision, open_catalog, open_store
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import RETRY
from waybill.tables.audit import DecisionKind, HoldDecision
from waybill.tables.quarantine.retry import retry_quarantine
from waybill.tables.quarantine.row_filter import RowFilter, Target
from waybill.tables.quarantine.view import QuarantineGroup, View, open_view, summarize

_SHOWN_BYTES = 4096
_HEX_BYTES_A_LINE = 32


# --- ls ---------------------------------------------------------------------------------------------------------------


def list_groups(stream: str, choice: RowFilter, *, as_json: bool) -> None:
    """Print the messages in quarantine, counted in groups; see `waybill quarantine ls --help`."""
    config = load_streams()
    chosen = config.stream(stream)
    with open_store(config) as store, open_catalog(config) as catalog:
        view = open_view(store, catalog, stream, chosen)
        groups = [] if view is None else summarize(view, choice)
        moved = 0 if view is None else len(view.moved)
    messages = sum(group.rows for group in groups)
    if as_json:
        print_json({"stream": stream, "messages": messages, "moved": moved, "groups": list(map(_document, groups))})
        return
    if groups:
        _print_groups(groups)
    print(_closing_lines(stream, messages, moved), file=sys.stderr)


def _print_groups(groups: Sequence[QuarantineGroup]) -> None:
    columns = [
        PrintedColumn("reason"),
        PrintedColumn("parser"),
        PrintedColumn("topic"),
        PrintedColumn("messages", figure=True),
        PrintedColumn("first", figure=True),
        PrintedColumn("last", figure=True),
        PrintedColumn("since", figure=True),
        PrintedColumn("until", figure=True),
    ]
    print_table(
        columns,
        (
            [
                group.reason,
                group.parser,
                group.topic,
                count(group.rows),
                f"{group.first.partition}@{group.first.offset}",
                f"{group.last.partition}@{group.last.offset}",
                time_text(group.first_quarantined_at),
                time_text(group.last_quarantined_at),
            ]
            for group in groups
        ),
    )


def _closing_lines(stream: str, messages: int, moved: int) -> str:
    if messages:
        text = (
            f"{counted(messages, 'message')}. To look at some: waybill quarantine show {stream}. To parse them again "
        )
        text += f"after a correction: waybill quarantine retry {stream}"
    else:
        text = _no_message(stream)
    if moved:
        text += f"\n{counted(moved, 'more message')} moved to the table by an interrupted retry; the next retry ends it"
    return text


def _no_message(stream: str) -> str:
    return f"no such message of {stream} is in quarantine"


def _document(group: QuarantineGroup) -> dict[str, Any]:
    return {
        "reason": group.reason,
        "parser": group.parser,
        "topic": group.topic,
        "messages": group.rows,
        "first": {"partition": group.first.partition, "offset": group.first.offset},
        "last": {"partition": group.last.partition, "offset": group.last.offset},
        "first_quarantined_at": time_text(group.first_quarantined_at),
        "last_quarantined_at": time_text(group.last_quarantined_at),
    }


# --- show -------------------------------------------------------------------------------------------------------------


def show_messages(stream: str, choice: RowFilter, *, limit: int, raw: bool, as_json: bool) -> None:
    """Print messages in quarantine; see `waybill quarantine show --help`."""
    config = load_streams()
    chosen = config.stream(stream)
    with open_store(config) as store, open_catalog(config) as catalog:
        view = open_view(store, catalog, stream, chosen)
        rows = iter(()) if view is None else _iter_rows(view, choice)
        if raw:
            _write_raw(sys.stdout.buffer, list(islice(rows, 2)))
            return
        shown = 0
        for row in islice(rows, limit):
            if as_json:
                sys.stdout.buffer.write(orjson.dumps(_message_document(row), option=orjson.OPT_APPEND_NEWLINE))
            else:
                typer.echo(f"{chr(10) if shown else ''}{_message_text(row)}")
            shown += 1
        sys.stdout.flush()
        if not shown:
            print(_no_message(stream), file=sys.stderr)
        elif next(rows, None) is not None:
            print(f"\nthere are more than {limit}: raise --limit, or choose by --reason", file=sys.stderr)


def _iter_rows(view: View, choice: RowFilter) -> Iterator[dict[str, Any]]:
    for batch in view.rows(choice):
        for number in range(batch.num_rows):  # one at a time: a batch may be megabytes, and few of its rows are shown
            yield batch.slice(number, 1).to_pylist()[0]


def _write_raw(out: IO[bytes], rows: Sequence[dict[str, Any]]) -> None:
    if len(rows) != 1:
        matches = "no message matches" if not rows else "several messages match"
        raise ConfigError(f"--raw writes the value of one message, and {matches}: give it as TOPIC/PARTITION@OFFSET")
    value = rows[0]["value"]
    if value is None:
        raise ConfigError("the message is a tombstone: it has no value")
    out.write(value)
    out.flush()


def _message_document(row: dict[str, Any]) -> dict[str, Any]:
    timestamp = row["kafka_timestamp"]
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "reason": row["reason"],
        "parser": row["parser"],
        "quarantined_at": time_text(row["quarantined_at"]),
        "kafka_timestamp": None if timestamp is None else time_text_ms(timestamp),
        "key": bytes_document(row["key"]),
        "value": bytes_document(row["value"]),
        "headers": [{"key": header["key"], "value": bytes_document(header["value"])} for header in row["headers"]],
    }


def _message_text(row: dict[str, Any]) -> str:
    timestamp = row["kafka_timestamp"]
    kafka = "no Kafka timestamp" if timestamp is None else f"Kafka timestamp {time_text_ms(timestamp)}"
    lines = [
        f"{Target(row['topic'], row['partition'], row['offset'])}  {_printable(row['reason'])}",
        f"  refused by {row['parser']}, {time_text(row['quarantined_at'])}; {kafka}",
        f"  key: {_one_line(row['key'])}",
        *(f"  header {_printable(header['key'])}: {_one_line(header['value'])}" for header in row["headers"]),
        *_value_lines(row["value"]),
    ]
    return "\n".join(lines)


def _value_lines(value: bytes | None) -> Iterator[str]:
    if value is None:
        yield "  value: none (a tombstone)"
        return
    start = value[:_SHOWN_BYTES]
    text = _printable_text(value)
    if text is None:
        yield f"  value ({bytes_text(len(value))}, in hexadecimal):"
        for at in range(0, len(start), _HEX_BYTES_A_LINE):
            yield f"    {start[at : at + _HEX_BYTES_A_LINE].hex(' ')}"
    else:
        yield f"  value ({bytes_text(len(value))}):"
        yield from (f"    {line}" for line in text[:_SHOWN_BYTES].split("\n"))
    if len(value) > _SHOWN_BYTES:
        yield "    … (the rest: --raw)"


def _one_line(data: bytes | None) -> str:
    if data is None:
        return "none"
    text = _printable_text(data)
    return f"{text!r}" if text is not None else f"{data[:64].hex(' ')}{' …' if len(data) > 64 else ''} (hexadecimal)"


def _printable_text(data: bytes) -> str | None:
    """Return the text if a terminal can show it, else None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(character.isprintable() or character in "\n\t" for character in text) else None


def _printable(text: str) -> str:
    """Escape control characters: a reason quotes the message, which may contain commands for the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- retry ------------------------------------------------------------------------------------------------------------


def run_retry(
    stream: str,
    choice: RowFilter,
    values: Mapping[str, object],
    *,
    dry_run: bool,
    accepted_because: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Parse messages in quarantine again and print the report; see `waybill quarantine retry --help`.

    `values`: the options of `choice`, for the log of decisions.
    """
    accepted = None if accepted_because is None else _accept(accepted_because, by)
    config = load_streams()
    config.stream(stream)
    decision = Decision("" if accepted is None else accepted.reason, by or current_user())
    with nullcontext() if dry_run else logged(config, RETRY, decision, values):
        report = retry_quarantine(config, stream, choice, dry_run=dry_run, accepted=accepted)
    if as_json:
        print_json(report.document())
        return
    for line in report.lines():
        typer.echo(_printable(line))


def _accept(reason: str, by: str | None) -> HoldDecision:
    if not reason.strip():
        raise ConfigError("--accept-failed-checks is empty: give the reason; it is stored with the retry")
    given = make_decision(reason, by)
    return HoldDecision(DecisionKind.RELEASED, given.by, given.reason, datetime.now(UTC))
