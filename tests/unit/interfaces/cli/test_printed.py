"""What commands print, as a table and as JSON: each case is compared with what was printed before `Output` existed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from waybill.config.names import TopicPartition

GOLDEN = Path(__file__).parents[2] / "data" / "printed.txt"
AT = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)
TP = TopicPartition("flights", 3)
CLI = "waybill.interfaces.cli"

CONFIG = SimpleNamespace(
    stream=lambda name: SimpleNamespace(name=name),
    streams={"flights": None},
    zookeeper=SimpleNamespace(root="/waybill"),
    kafka=SimpleNamespace(topics={"flights": None}),
)


class Shown(SimpleNamespace):
    """A domain object: its fields, its JSON document and its lines."""

    def document(self, *_: Any) -> dict[str, Any]:
        return {"document": self.name}

    def lines(self) -> list[str]:
        return [f"first line of {self.name}", "  second line"]


@contextlib.contextmanager
def opened(value: Any = None) -> Iterator[Any]:
    yield value


def backfill(name: str) -> Shown:
    request = SimpleNamespace(
        stream="flights", id=name, ranges=SimpleNamespace(offsets=1_234), by="ann", at=AT, reason="new\nparser"
    )
    return Shown(name=name, request=request, state="built", tasks_text="1/2", diff=Shown(name="diff"))


BACKFILLS = {
    "open_store": lambda *_: opened(),
    "stream_names": lambda *_: ["flights"],
    "find_backfill": lambda *_: None,
    "report_backfill": lambda *_: backfill("20261122_7f3a"),
    "report_backfills": lambda *_: [backfill("20261122_7f3a"), backfill("20261122_7f3b")],
    "plan_backfill": lambda *_: (None, Shown(name="estimate")),
    "current_user": lambda: "ann@host",
}
MOVE = Shown(
    name="move", group="billing", source=TP, source_offset=1_200, target="copy/3", present_offset=None,
    target_offset=7, state="committed",
)  # fmt: skip
RESTORE = Shown(
    name="restore", id="20261122_7f3a", stream="flights", connection="kafka_copy", by="ann", at=AT, reason="test"
)
REJECTED = Shown(name="rejected", topic="flights", partition=3, offset=1_200, reason="410 Gone")
UPLOAD = SimpleNamespace(
    key="backup/flights/1_3.kafka", upload_id="u1", begun=AT, chain=SimpleNamespace(tp=TP, generation=1)
)
INCIDENT = Shown(
    name="incident", id="7f3a", severity="critical", figure="23 min", since_ms=1_790_000_000_000, is_open=True,
    lasted_ms=None, acknowledged=None, kept_since_ms=None,
)  # fmt: skip


def rejected_of(*_: Any, after: Any = None, **__: Any) -> list[Any]:
    return [] if after else [REJECTED]


def text(*_: Any, **__: Any) -> None:
    """Stand for the text of a command, which has tests of its own."""
    typer.echo("the text")


CASES: dict[str, tuple[str, dict[str, Any], Callable[..., None]]] = {
    "backfill plan": (
        "backfill",
        BACKFILLS,
        lambda m, j: m.run_plan("flights", None, generation=None, source="archive", as_json=j),
    ),
    "backfill status": ("backfill", BACKFILLS, lambda m, j: m.print_status(None, None, as_json=j)),
    "backfill status, none": (
        "backfill",
        BACKFILLS | {"report_backfills": lambda *_: []},
        lambda m, j: m.print_status(None, None, as_json=j),
    ),
    "backfill status ID": ("backfill", BACKFILLS, lambda m, j: m.print_status("flights", "x", as_json=j)),
    "backfill diff": ("backfill", BACKFILLS, lambda m, j: m.print_diff("flights", "x", as_json=j)),
    "cost": (
        "cost",
        {
            "services_of": lambda *_: opened(),
            "ZooKeeperSession": SimpleNamespace(of=lambda *_: opened()),
            "UsageStore": lambda *_: None,
            "read_cost": lambda *_, **__: Shown(name="cost"),
            "print_cost": text,
        },
        lambda m, j: m.run("flights", since=None, until=None, max_bytes=None, max_age=None, as_json=j),
    ),
    "dedup status": (
        "dedup",
        {
            "_streams_with_dedup": lambda *_: ["flights", "trains"],
            "read_status": lambda _, name, __: Shown(name=name),
            "print_status": text,
        },
        lambda m, j: m.run_status(None, "24h", as_json=j),
    ),
    "finalize": (
        "finalize",
        {"finalize": lambda *_, **__: Shown(name="hours", blocked=["an hour"]), "_print": text},
        lambda m, j: m.run("flights", dry_run=False, all_hours=False, as_json=j),
    ),
    "incidents ls": (
        "incidents",
        {"_open_books": lambda *_: opened(SimpleNamespace(load=lambda: SimpleNamespace(incidents=[INCIDENT])))},
        lambda m, j: m.list_incidents(with_resolved=False, as_json=j),
    ),
    "kafka plan": (
        "kafka_topics",
        {
            "connect_cluster": lambda *_: opened(),
            "open_store": lambda *_: opened(),
            "read_plan_inputs": lambda *_: None,
            "make_plan": lambda *_: SimpleNamespace(steps=[], refused=[], moves_data=False),
        },
        lambda m, j: m.print_plan(as_json=j, check=True),
    ),
    "quarantine retry": (
        "quarantine",
        {"retry_quarantine": lambda *_, **__: Shown(name="retry\x1b"), "current_user": lambda: "ann@host"},
        lambda m, j: m.run_retry("flights", None, {}, dry_run=True, accepted_because=None, by=None, as_json=j),
    ),
    "replay show --rejected": (
        "replay",
        {"_open_queue": lambda *_: opened(SimpleNamespace(rejected_of=rejected_of))},
        lambda m, j: m.print_rejected("1", as_json=j),
    ),
    "replay show --rejected, none": (
        "replay",
        {"_open_queue": lambda *_: opened(SimpleNamespace(rejected_of=lambda *_, **__: []))},
        lambda m, j: m.print_rejected("1", as_json=j),
    ),
    "restore groups": (
        "restore",
        {"_offsets_of_groups": lambda *_: None, "move_groups": lambda *_, **__: [MOVE]},
        lambda m, j: m.run_groups("x", [], None, commit=False, backwards=False, as_json=j),
    ),
    "restore status": (
        "restore",
        {"open_store": lambda *_: opened(), "list_plans": lambda *_: [RESTORE], "_status_of": lambda *_: "no answer"},
        lambda m, j: m.print_status(None, as_json=j),
    ),
    "restore status, none": (
        "restore",
        {"open_store": lambda *_: opened(), "list_plans": lambda *_: []},
        lambda m, j: m.print_status(None, as_json=j),
    ),
    "trace": (
        "trace",
        {
            "open_services": lambda *_: opened(),
            "trace_message": lambda *_: Shown(name="message"),
            "_document": lambda found: found.document(),
            "_lines": lambda found: found.lines(),
        },
        lambda m, j: m.run_trace("flights", "flights/3@1200", None, as_json=j),
    ),
    "uploads ls": (
        "objects",
        {"open_store": lambda *_: opened(SimpleNamespace(pending_uploads=lambda: [UPLOAD]))},
        lambda m, j: m.list_uploads(None, as_json=j),
    ),
    "verify": (
        "verify",
        {
            "stream_names": lambda *_: ["flights", "trains"],
            "_verify_alone": lambda _, name, **__: Shown(name=name, is_sound=name == "flights"),
            "_print": text,
        },
        lambda m, j: m.run(None, table=True, keys=False, as_json=j),
    ),
}


def printed(name: str, as_json: bool, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    module_name, replaced, call = CASES[name]
    module = importlib.import_module(f"{CLI}.{module_name}")
    for attribute, value in {"load_streams": lambda: CONFIG, **replaced}.items():
        patch.setattr(module, attribute, value)
    code = 0
    try:
        call(module, as_json)
    except typer.Exit as ended:
        code = ended.exit_code
    out, err = capsys.readouterr()
    return f"== {name}{' --json' * as_json}: {code}\n{out}-- stderr\n{err}"


def sections() -> dict[str, str]:
    parts = GOLDEN.read_text(encoding="utf-8").split("== ")[1:]
    return {part.partition(": ")[0]: f"== {part}" for part in parts}


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("name", CASES)
def test_the_output_is_what_it_was(
    name: str, as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(name, as_json, capsys, monkeypatch) == sections()[f"{name}{' --json' * as_json}"]
