"""A decision writes the same record through each surface, and no surface depends on the log but the pages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.base.decision import Decision, Surface
from waybill.base.errors import DecisionRefused, StoreUnavailable
from waybill.config.names import action_key
from waybill.interfaces.operations import audit_log
from waybill.interfaces.operations.audit_log import TriggeredRun, log_run, logged, record_of, run_ordered_at
from waybill.interfaces.operations.catalogue import REJECT
from waybill.watch.promises.action_log import ActionPlace, find_action, list_actions, record_action

NOW_MS = 1_790_000_000_000
CONFIG: Any = SimpleNamespace(storage=None)
VALUES = {"stream": "flights", "plan": "p1"}
RUN = TriggeredRun("quality_decision", "manual__1", datetime.fromtimestamp(NOW_MS / 1000, UTC), "/dags/x")


@dataclass
class MemoryStore:
    prefix: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    is_away: bool = False

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None:
        existing = self.read_if_exists(key)
        self.objects.setdefault(key, bytes(data))
        return existing

    def read_if_exists(self, key: str) -> bytes | None:
        if self.is_away:
            raise StoreUnavailable("archive", "refused", "start it")
        return self.objects.get(key)

    def read(self, key: str) -> bytes:
        return self.objects[key]

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.objects if key.startswith(prefix)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    memory = MemoryStore()

    @contextlib.contextmanager
    def opened(_: object) -> Iterator[MemoryStore]:
        yield memory

    monkeypatch.setattr(audit_log, "Store", SimpleNamespace(of=opened))
    return memory


def decision(surface: Surface) -> Decision:
    return Decision("the field is wrong", "ada", surface, NOW_MS)


def test_each_surface_writes_the_same_record(store: MemoryStore) -> None:
    page = record_of(ActionPlace(NOW_MS, "0" * 24), REJECT, decision(Surface.PAGE), REJECT.values_of(VALUES))
    assert record_action(store, page)  # type: ignore[arg-type]
    with logged(CONFIG, REJECT, decision(Surface.TERMINAL), VALUES):
        pass
    log_run(CONFIG, RUN, REJECT, decision(Surface.AIRFLOW), {**VALUES, "decision": "reject", "reason": "…"})
    records = [record for record, _ in list_actions(store, NOW_MS)]  # type: ignore[arg-type]
    assert {record.surface for record in records} == {"page", "terminal", "Airflow"}
    assert all(replace(each, id=page.id, surface=page.surface, form_ms=page.form_ms) == page for each in records)


def test_what_came_of_a_command_is_logged(store: MemoryStore) -> None:
    with logged(CONFIG, REJECT, decision(Surface.TERMINAL), VALUES) as done:
        [(_, before)] = list_actions(store, NOW_MS)  # type: ignore[arg-type]
        assert before is None, "the record comes first"
        done.text = "plan p1 is rejected"
    [(_, outcome)] = list_actions(store, NOW_MS)  # type: ignore[arg-type]
    assert outcome is not None
    assert (outcome.is_done, outcome.text) == (True, "plan p1 is rejected")


def test_a_command_that_is_refused_is_logged_and_its_error_stays(store: MemoryStore) -> None:
    with (
        pytest.raises(DecisionRefused, match="no run is held"),
        logged(CONFIG, REJECT, decision(Surface.TERMINAL), VALUES),
    ):
        raise DecisionRefused("no run is held")
    [(_, outcome)] = list_actions(store, NOW_MS)  # type: ignore[arg-type]
    assert outcome is not None
    assert (outcome.is_done, outcome.text) == (False, "DecisionRefused: no run is held")


def test_a_command_is_done_while_the_log_is_away(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    store.is_away = True
    done = False
    with logged(CONFIG, REJECT, decision(Surface.TERMINAL), VALUES):
        done = True
    assert done
    assert [each.levelname for each in caplog.records] == ["WARNING"], "it is said once"


def test_a_dag_run_is_logged_once_whatever_its_tries(store: MemoryStore) -> None:
    for _ in range(2):
        log_run(CONFIG, RUN, REJECT, Decision.of_run(None, "why"), VALUES)
    [(record, outcome)] = list_actions(store, NOW_MS)  # type: ignore[arg-type]
    assert (record.by, record.surface) == ("airflow", "Airflow")
    assert outcome is not None
    assert (outcome.dag, outcome.run) == (RUN.dag, RUN.id)


def test_a_run_that_a_page_ordered_has_its_record_already(store: MemoryStore) -> None:
    place = ActionPlace(NOW_MS, "0" * 24)
    ordered = replace(RUN, id=run_ordered_at(place))
    assert record_action(store, record_of(place, REJECT, decision(Surface.PAGE), VALUES))  # type: ignore[arg-type]
    log_run(CONFIG, ordered, REJECT, decision(Surface.AIRFLOW), VALUES)
    assert len(list_actions(store, NOW_MS)) == 1  # type: ignore[arg-type]
    store.objects.clear()
    log_run(CONFIG, ordered, REJECT, decision(Surface.AIRFLOW), VALUES)
    assert len(list_actions(store, NOW_MS)) == 1, "a name alone does not keep a run from the log"  # type: ignore[arg-type]


def test_a_record_from_before_surfaces_is_one_of_a_page(store: MemoryStore) -> None:
    place = ActionPlace(NOW_MS, "0" * 24)
    key = action_key("", place.form_ms, place.id)
    store.objects[key] = (
        b'{"v":1,"id":"000000000000000000000000","form_ms":1790000000000,"at_ms":1790000000000,"by":"ada",'
        b'"action":"pause","stream":"flights","reason":"why","command":"waybill pause flights",'
        b'"arguments":{},"request":"1"}'
    )
    found = find_action(store, place)  # type: ignore[arg-type]
    assert found is not None
    assert (found[0].by, found[0].surface) == ("ada", "page")
