"""Names that go elsewhere: ids of incidents, labels of metrics, and the bounds of a column in a data file."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from fuzzers.engine import Target
from fuzzers.mutation import CHARACTERS, text
from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.tables.staging.table_layout import TableLayout
from waybill.watch.incidents.finding import REACHABLE, Finding, Verdict
from waybill.watch.incidents.incident import IncidentBook
from waybill.watch.incidents.rules import advance
from waybill.watch.metrics.families import metric_families
from waybill.watch.promises.measure import Measured

_NOW_MS = 1_800_000_000_000
_PROMISES = [str(each) for each in PromiseName]


def _make_names(chance: random.Random) -> bytes:
    """Return a stream, a promise and a subject as JSON: the subject may be a consumer group, a broker, a user."""
    stream = chance.choice(["orders", "orders-eu", "orders_eu", "ORDERS", "a", "a-b", ""])
    subject = chance.choice([
        text(chance, 20), text(chance, 80), "orders.billing", "orders-billing", "orders_billing", "x" * 300, "", "-", "münchen",
        "a\r\nBcc: b", '"\\\n', "<script>", "../..", "a" * 40 + "b", "a" * 40 + "c",
    ])  # fmt: skip
    return json.dumps([stream, chance.choice(_PROMISES), subject], ensure_ascii=False).encode()


def _names(inputs: Sequence[bytes]) -> list[tuple[str, str, str]]:
    found = []
    for each in inputs:
        try:
            names = json.loads(each)
        except ValueError:
            continue
        if isinstance(names, list) and len(names) == 3 and all(isinstance(name, str) for name in names):
            try:
                each.decode()
                "".join(names).encode()
            except ValueError:
                continue
            found.append((names[0], names[1], names[2]))
    return found


def _finding(names: tuple[str, str, str], value: float | None = 1.0) -> Finding:
    stream, promise, subject = names
    return Finding(
        stream=stream,
        promise=promise,
        verdict=Verdict.BROKEN,
        severity=PromiseSeverity.WARNING,
        subject=subject,
        value=value,
    )


# --- incidents --------------------------------------------------------------------------------------------------------

_ID = re.compile(r"[A-Za-z0-9._+-]{1,200}", re.ASCII)


def _check_incidents(inputs: Sequence[bytes]) -> None:
    """Invariants: an incident for each key, with an id of its own that fits a header, a URL, a file name and a mail."""
    findings = {names: _finding(names) for names in _names(inputs)}
    book = advance(IncidentBook(), list(findings.values()), Alerts(), _NOW_MS)
    assert {each.key for each in book.incidents} == set(findings)
    by_id: dict[str, tuple[str, str, str]] = {}
    for each in book.incidents:
        assert _ID.fullmatch(each.id), f"{each.id!r} of {each.key}"
        other = by_id.setdefault(each.id, each.key)
        assert other == each.key, f"{other} and {each.key} have the id {each.id}"
    assert IncidentBook.parse(json.loads(json.dumps(book.document()))) == book
    again = advance(book, list(findings.values()), Alerts(), _NOW_MS + 60_000)
    assert [each.id for each in again.incidents] == [each.id for each in book.incidents]


# --- metrics ----------------------------------------------------------------------------------------------------------


class _Once(Collector):
    def __init__(self, measured: Measured, book: IncidentBook) -> None:
        self._measured, self._book = measured, book

    def collect(self) -> Any:
        return metric_families(self._measured, self._book.incidents, 0.5, _NOW_MS)


def _check_labels(inputs: Sequence[bytes]) -> None:
    """Oracle: Prometheus's own parser of the text format. It finds the labels that were given, in one sample each."""
    unique = {names for names in _names(inputs) if names[0]}
    # A promise whose figure is a metric of its own has no subject, but for deadlines.
    with_figure = {
        (stream, promise, subject)
        for stream, promise, subject in unique
        if not subject or promise == PromiseName.COMPLETE_BY
    }
    findings = [_finding(names, 1.0 if names in with_figure else None) for names in unique]
    findings += [
        Finding("", REACHABLE, Verdict.KEPT, PromiseSeverity.WARNING, subject=each)
        for each in {names[2] for names in unique}
    ]
    measured = Measured(findings=findings, logs=None, states={})
    registry = CollectorRegistry()
    registry.register(_Once(measured, IncidentBook()))
    written = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    assert plain_text(registry).decode().count("\n") == written.count("\n") - 1
    samples = [sample for family in text_string_to_metric_families(written) for sample in family.samples]  # type: ignore[no-untyped-call]
    kept = [each for each in samples if each.name == "waybill_promise_kept"]
    assert {(each.labels["stream"], each.labels["promise"], each.labels["subject"]) for each in kept} == unique
    assert {each.labels["service"] for each in samples if each.name == "waybill_service_up"} == {
        each[2] for each in unique
    }


# --- bounds -----------------------------------------------------------------------------------------------------------


@cache
def _layout() -> TableLayout:
    schema = Schema(NestedField(1, "id", StringType(), required=False))
    return TableLayout("t", "file:///none", schema, UNPARTITIONED_PARTITION_SPEC, None, {})


def _make_bound(chance: random.Random) -> bytes:
    edge_of_16 = "a" * chance.choice([14, 15, 16])
    return (edge_of_16 + "".join(chance.choice([*CHARACTERS, "z"]) for _ in range(chance.randrange(5)))).encode()


def _check_bounds(inputs: Sequence[bytes]) -> None:
    """Invariants: a file of any ids has bounds that are UTF-8 and hold all its ids, or none.

    10,000 inputs in `make test-deep`: each is a Parquet file of its own.
    """
    for each in inputs:
        try:
            each.decode()
        except UnicodeDecodeError:
            continue
        ids = pa.table(
            {"id": pa.array([each.decode(), "A"], pa.string())},
            schema=_layout().arrow_schema(pa.schema([("id", pa.string())])),
        )
        target = io.BytesIO()
        pq.write_table(ids, target)
        file = _layout().data_file(
            "f", target.tell(), pq.read_metadata(io.BytesIO(target.getvalue())), partition=(), is_sorted=False
        )
        lower, upper = (file.lower_bounds or {}).get(1), (file.upper_bounds or {}).get(1)
        for bound in (lower, upper):
            (bound or b"").decode()
        # Iceberg compares texts by their UTF-8 bytes.
        assert lower is None or lower <= min(each, b"A"), (lower, each)
        assert upper is None or upper >= max(each, b"A"), (upper, each)


INCIDENTS = Target("incidents", _make_names, _check_incidents, batch=200)
LABELS = Target("metric_labels", _make_names, _check_labels, batch=1_000)
BOUNDS = Target("bounds", _make_bound, _check_bounds, batch=100, deep=10_000, smoke=200)
