"""One element of a watch that raises is an incident of its own, and the others are measured.

tests/integration/test_watch.py watches the real services.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from waybill.base.errors import ConfigError, KafkaUnavailable
from waybill.config.models import Config
from waybill.config.models.last_valid import WatchConfig, load_for_watch
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.config.names import TopicPartition
from waybill.services.coordination.pauses import StreamPauses
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import CONFIG, MEASURED, READABLE, Finding, Verdict
from waybill.watch.incidents.incident import IncidentBook
from waybill.watch.incidents.rules import advance
from waybill.watch.promises import log_figures, measure, table_states
from waybill.watch.promises.config_figures import config_findings, unwatched_findings
from waybill.watch.promises.log_figures import Logs, joined
from waybill.watch.promises.samples import OffsetSample, Samples
from waybill.watch.promises.services import WatchServices
from waybill.watch.promises.table_figures import TableState
from waybill.watch.promises.volumes import Volumes

NOW_MS = 1_800_000_000_000
NAMES = ("flights", "fares", "orders", "seats", "bags")


def config_of(*names: str) -> Config:
    streams = {
        name: {"topics": [name], "table": f"a.{name}", "parser": {"event_time": {"field": "at"}}} for name in names
    }
    return Config.model_validate({"version": 1, "storage": {"bucket": "archive"}, "streams": streams})


CONFIG_OF_ALL = config_of(*NAMES)


def logs_of(*names: str, **fields: Any) -> Logs:
    return Logs(
        offsets={(name, TopicPartition(name, 0)): OffsetSample(0, 10, 10) for name in names},
        stops=dict.fromkeys(names, ()),
        pauses=dict.fromkeys(names, StreamPauses()),
        **fields,
    )


def test_a_stream_whose_logs_cannot_be_observed_is_reported_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(_: Config, __: object, names: list[str]) -> Logs:
        if "orders" in names:
            raise ZeroDivisionError("a topic of orders")
        if "bags" in names:
            raise ConfigError("no ACL for bags")
        return logs_of(*names)

    monkeypatch.setattr(measure, "observe", observe)
    failed = {name: Failures() for name in NAMES}
    logs = measure._observe(CONFIG_OF_ALL, object(), NAMES, failed)  # type: ignore[arg-type]
    assert set(logs.stops) == {"flights", "fares", "seats"}
    assert [name for name, each in failed.items() if each.texts] == ["orders", "bags"]
    assert "unexpected ZeroDivisionError at" in failed["orders"].texts[0]
    assert failed["bags"].texts == ["no ACL for bags"]

    def away(*_: object) -> Logs:
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(measure, "observe", away)
    with pytest.raises(KafkaUnavailable):
        measure._observe(CONFIG_OF_ALL, object(), NAMES, failed)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", ["archive_lag", "retention_runway", "named_stops", "pauses"])
def test_a_promise_that_raises_is_unknown_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*_: object) -> Finding:
        raise KeyError("x")

    monkeypatch.setattr(log_figures, function, fail)
    failures = Failures()
    found = measure._log_findings(CONFIG_OF_ALL, "flights", logs_of("flights"), Samples(), Volumes(), NOW_MS, failures)
    verdicts = [each.verdict for each in found]
    assert len(found) == 5
    assert (verdicts.count(Verdict.UNKNOWN), verdicts.count(Verdict.KEPT)) == (1, 4)
    assert len(failures.texts) == 1


def test_tables_whose_figures_raise_hide_no_other_stream_or_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, *_: object) -> Finding:
        if name == "fares":
            raise TypeError("x")
        return Finding(name, PromiseName.LATE_SHARE, Verdict.KEPT, PromiseSeverity.WARNING)

    def read(name: str, *_: object) -> TableState:
        if name == "orders":
            raise RuntimeError("the reader has a fault")
        return TableState(NOW_MS, {}, {})

    class NoServices:
        def __enter__(self) -> object:
            return object()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("waybill.watch.promises.table_figures._late_share", fail)
    monkeypatch.setattr("waybill.watch.promises.table_reader.read_table_state", read)
    monkeypatch.setattr("waybill.tables.staging.services.services_of", lambda *_: NoServices())
    services = WatchServices(CONFIG_OF_ALL, lambda _: None)  # type: ignore[arg-type,return-value]
    services.store = object()  # type: ignore[assignment]
    failed = {name: Failures() for name in NAMES}
    found = table_states.table_findings(CONFIG_OF_ALL, services, NAMES, logs_of(*NAMES), Samples(), {}, NOW_MS, failed)
    by_key = {each.key: each.verdict for each in found}
    assert by_key["flights", PromiseName.LATE_SHARE, ""] is Verdict.KEPT
    assert by_key["fares", PromiseName.LATE_SHARE, ""] is Verdict.UNKNOWN
    assert by_key["fares", PromiseName.TABLE_LAG, ""] is Verdict.KEPT
    assert by_key["orders", READABLE, ""] is Verdict.BROKEN
    assert {name for name, each in failed.items() if each.texts} == {"fares"}
    assert services.findings["the catalog"].verdict is Verdict.KEPT


def test_a_fault_while_a_service_is_asked_is_noted_and_the_service_is_not_known() -> None:
    services = WatchServices(CONFIG_OF_ALL, lambda _: None)  # type: ignore[arg-type,return-value]
    with services.needed("S3"):
        raise IndexError("x")
    with services.needed("Kafka"):
        raise ConfigError("the connection waybill_kafka is missing")
    with pytest.raises(KeyboardInterrupt), services.needed("S3"):
        raise KeyboardInterrupt
    assert services.findings["S3"].verdict is Verdict.UNKNOWN
    assert services.failures["the watch"].texts
    kafka = services.findings["Kafka"]
    assert (kafka.verdict, kafka.figure) == (Verdict.BROKEN, "cannot be used: ConfigError")


def test_what_was_not_read_is_not_kept() -> None:
    logs = joined([logs_of("flights"), logs_of("fares", unread={"fares": "no leader answered"})])
    for name, verdict in (("flights", Verdict.KEPT), ("fares", Verdict.UNKNOWN)):
        found = measure._log_findings(CONFIG_OF_ALL, name, logs, Samples(), Volumes(), NOW_MS, Failures())
        by_promise = {each.promise: each for each in found}
        assert by_promise[PromiseName.ARCHIVE_LAG].verdict is verdict
        assert by_promise[PromiseName.NAMED_STOP].verdict is Verdict.KEPT


def test_an_error_in_a_stream_is_its_incident_and_ends_no_other_of_it(tmp_path: Path) -> None:
    """N7: a typo in the only stream ended the watch, and one in another made its open incidents look resolved."""
    alerts = CONFIG_OF_ALL.alerts
    lag = Finding("flights", PromiseName.ARCHIVE_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, "20 min")
    book = advance(IncidentBook(), [lag], alerts, NOW_MS)
    file = tmp_path / "streams.yaml"
    text = "version: 1\nstorage: {bucket: archive}\nstreams:\n"
    for name in ("flights", "fares"):
        text += f"  {name}: {{topics: [{name}], table: a.{name}, parser: {{event_time: {{field: at}}}}}}\n"
    file.write_text(text.replace("topics: [flights]", "topcis: [flights]"))
    for content in (file.read_text(), text.replace("topics", "topcis")):
        file.write_text(content)
        loaded = load_for_watch(file, tmp_path / "none")
        found = config_findings(loaded)
        found += unwatched_findings(loaded, book, found)
        later = advance(book, found, alerts, NOW_MS + int(timedelta(hours=1).total_seconds() * 1000))
        is_open = {(each.stream, each.promise) for each in later.incidents if each.is_open}
        assert ("flights", PromiseName.ARCHIVE_LAG) in is_open
        assert is_open & {("flights", CONFIG), ("", CONFIG)}
    removed = WatchConfig(config_of("fares"))
    over = advance(book, [*config_findings(removed), *unwatched_findings(removed, book, [])], alerts, NOW_MS + 1)
    assert not [each for each in over.incidents if each.is_open]


def test_every_stream_and_what_all_share_has_the_promise_that_all_is_measured() -> None:
    services = WatchServices(CONFIG_OF_ALL, lambda _: None)  # type: ignore[arg-type,return-value]
    found = measure.measure(CONFIG_OF_ALL, services, NOW_MS, stores=False).findings
    measured = {each.key for each in found if each.promise == MEASURED}
    assert measured == {(name, MEASURED, "") for name in NAMES} | {
        ("", MEASURED, subject) for subject in ("Kafka", "Airflow", "the watch")
    }
