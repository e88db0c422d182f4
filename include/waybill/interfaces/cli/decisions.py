"""`waybill decisions`: what people did on the pages, in terminals and in Airflow."""

from __future__ import annotations

import sys
import time

from waybill.base.printable import printable
from waybill.config.models.quantities import counted
from waybill.interfaces.cli.render import PrintedColumn, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import load_streams, open_store
from waybill.watch.promises.action_log import ActionOutcome, ActionRecord, list_actions


def list_decisions(stream: str | None, *, as_json: bool) -> None:
    """Print the newest decisions of the last days; see `waybill decisions --help`."""
    config = load_streams()
    if stream is not None:
        config.stream(stream)
    with open_store(config) as store:
        found = [each for each in list_actions(store, time.time_ns() // 1_000_000) if stream in (None, each[0].stream)]
    if as_json:
        print_json([_document(*each) for each in found])
        return
    if found:
        print_table([PrintedColumn(name) for name in _COLUMNS], [_row(*each) for each in found])
    print(counted(len(found), "decision"), file=sys.stderr)


_COLUMNS = ("at", "by", "through", "decision", "reason", "outcome")


def _row(record: ActionRecord, outcome: ActionOutcome | None) -> list[str]:
    texts = (record.by, record.surface, record.command, record.reason, _text(outcome))
    return [time_text_of(record.at_ms), *map(printable, texts)]


def _text(outcome: ActionOutcome | None) -> str:
    return "no outcome is recorded" if outcome is None else outcome.text


def _document(record: ActionRecord, outcome: ActionOutcome | None) -> dict[str, object]:
    return {
        "at_ms": record.at_ms,
        "by": record.by,
        "surface": record.surface,
        "operation": record.action,
        "stream": record.stream,
        "arguments": record.arguments,
        "reason": record.reason,
        "command": record.command,
        "is_done": None if outcome is None else outcome.is_done,
        "outcome": None if outcome is None else outcome.text,
        "dag": None if outcome is None else outcome.dag or None,
        "run": None if outcome is None else outcome.run or None,
    }
