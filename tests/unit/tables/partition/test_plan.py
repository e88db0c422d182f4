"""The plan of a partition run: its document, its bounds, and how spans are packed into tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.chain import ChainObject
from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import ArchiveFault
from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config.models import JsonParser, ParseSettings
from waybill.config.names import BackupName, TopicPartition, plan_key, staged_key
from waybill.tables.partition.partition_plan import Plan, bound, make_plan, pack

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
PARSER = JsonParser.model_validate({"event_time": {"field": "time.scheduled"}, "message_id": "id"})

FAULTS = {TopicPartition("flights", 2): ArchiveFault(TopicPartition("flights", 2), 7, "it is damaged")}


def chain(tp: TopicPartition, *bounds: int, size_bytes: int = 100) -> list[ChainObject]:
    """Return the objects of a chain that is cut at these offsets."""
    named = [(BackupName(tp.topic, 1, tp.partition, first), following) for first, following in pairwise(bounds)]
    return [ChainObject(name, name.key(""), following, size_bytes) for name, following in named]


def plan(
    chains: dict[TopicPartition, list[ChainObject]],
    start: dict[TopicPartition, int],
    task_bytes: int = 1000,
    run_bytes: int = 1 << 30,
    slots: int = 1,
) -> Plan | None:
    return make_plan(
        "plans/flights/1/uuid/abc.json",
        stream="flights",
        generation=1,
        parse_settings=ParseSettings(parser=PARSER),
        created_at=datetime(2026, 1, 31, 12, 30, tzinfo=UTC),
        start=start,
        chains=chains,
        task_bytes=task_bytes,
        run_bytes=run_bytes,
        slots=slots,
        faults=FAULTS,
    )


def test_a_plan_covers_all_new_offsets_up_to_the_ends_of_the_chains() -> None:
    made = plan({TP0: chain(TP0, 0, 10, 25), TP1: chain(TP1, 7, 9)}, {TP0: 0})
    assert made is not None
    assert made.start == {TP0: 0}
    assert made.end == {TP0: 25, TP1: 9}
    assert sorted((s.tp, s.first_offset, s.next_offset) for task in made.tasks for s in task) == [
        (TP0, 0, 10),
        (TP0, 10, 25),
        (TP1, 7, 9),
    ]


def test_an_object_that_was_read_in_part_is_cut_to_the_remaining_offsets() -> None:
    made = plan({TP0: chain(TP0, 0, 10, 25)}, {TP0: 4})
    assert made is not None
    assert [(s.first_offset, s.next_offset) for task in made.tasks for s in task] == [(4, 10), (10, 25)]


def test_a_topic_partition_without_new_offsets_keeps_its_progress() -> None:
    made = plan({TP0: [], TP1: chain(TP1, 0, 5)}, {TP0: 42})
    assert made is not None
    assert made.end == {TP0: 42, TP1: 5}


def test_no_plan_is_made_without_new_offsets() -> None:
    assert plan({}, {}) is None
    assert plan({TP0: chain(TP0, 0, 10)}, {TP0: 10}) is None


def test_a_plan_is_read_back_from_its_document() -> None:
    made = plan({TP0: chain(TP0, 0, 10, 25), TP1: chain(TP1, 7, 9)}, {TP0: 4}, task_bytes=1)
    assert made is not None
    assert Plan.from_json(made.key, made.to_json()) == made
    assert made.id == "abc"


@pytest.mark.parametrize(
    "damage", [{"v": 1}, {"tasks": [[["flights"]]]}, {"reading": {"parser": {"name": "xml"}}}, {"start": []}]
)
def test_a_plan_that_cannot_be_parsed_is_refused_with_its_key(damage: dict[str, object]) -> None:
    made = plan({TP0: chain(TP0, 0, 10)}, {})
    assert made is not None
    text = json.dumps(json.loads(made.to_json()) | damage).encode()
    with pytest.raises(DocumentDamaged, match=r"(?s)plans/flights/1/uuid/abc\.json .*remove the object"):
        Plan.from_json(made.key, text)


def test_a_plan_of_a_newer_waybill_is_refused_with_the_remedy() -> None:
    made = plan({TP0: chain(TP0, 0, 10)}, {})
    assert made is not None
    text = json.dumps(json.loads(made.to_json()) | {"v": 3}).encode()
    with pytest.raises(DocumentTooNew, match=r"plans/flights/1/uuid/abc\.json .*newer Waybill.* remove the object"):
        Plan.from_json(made.key, text)


def test_the_start_names_the_plan() -> None:
    def key(progress: dict[TopicPartition, int], uuid: str = "u1") -> str:
        return plan_key("p", "flights", 1, uuid, progress)

    assert key({TP0: 1, TP1: 2}) == key({TP1: 2, TP0: 1})
    assert len({key({}), key({TP0: 0}), key({TP0: 1}), key({TP1: 1}), key({TP0: 1}, "u2")}) == 5
    assert plan_key("p", "flights", 1, "u1", {TP0: 1}, attempt=1) != plan_key("p", "flights", 1, "u1", {TP0: 1})
    assert key({}).startswith("p/plans/flights/1/u1/")
    assert staged_key("a/b.json") == "a/b.staged.json"


sizes = st.lists(st.integers(0, 400), max_size=20)


@given(st.dictionaries(st.integers(0, 3), sizes, max_size=4), st.integers(1, 1000))
def test_packing_keeps_every_span_once_and_each_topic_partition_in_order(
    chains: dict[int, list[int]], task_bytes: int
) -> None:
    spans = {
        TopicPartition("t", p): [
            Span(TopicPartition("t", p), f"{p}/{n}", n, n + 1, size) for n, size in enumerate(sized)
        ]
        for p, sized in chains.items()
    }
    tasks = pack(spans, task_bytes)
    assert all(tasks)
    packed = [span for task in tasks for span in task]
    for tp, expected in spans.items():
        assert [span for span in packed if span.tp == tp] == expected
    assert len(packed) == sum(map(len, spans.values()))
    for task in tasks:
        if len(task) > 1:
            assert sum(s.size_bytes for s in task) <= task_bytes + task[-1].size_bytes / 2


@given(st.dictionaries(st.integers(0, 3), sizes, max_size=4), st.integers(1, 3000))
def test_a_bounded_backlog_has_the_first_spans_of_each_chain_and_at_least_one_span(
    chains: dict[int, list[int]], run_bytes: int
) -> None:
    spans = {
        TopicPartition("t", p): [
            Span(TopicPartition("t", p), f"{p}/{n}", n, n + 1, size) for n, size in enumerate(sized)
        ]
        for p, sized in chains.items()
    }
    kept = bound(spans, run_bytes)
    assert all(list(chain) == spans[tp][: len(chain)] for tp, chain in kept.items())
    count = sum(map(len, kept.values()))
    assert count > 0 or not any(spans.values())
    assert count <= 1 or sum(s.size_bytes for chain in kept.values() for s in chain) <= run_bytes


def test_a_plan_is_bounded_and_ends_where_its_tasks_end() -> None:
    made = plan({TP0: chain(TP0, 0, 10, 20, 30, 40), TP1: chain(TP1, 0, 5, 9)}, {TP0: 0}, run_bytes=300)
    assert made is not None
    assert made.end == {TP0: 20, TP1: 5}
    assert sum(len(task) for task in made.tasks) == 3


def test_packing_makes_few_tasks_that_each_read_the_same_share_of_all_chains() -> None:
    """Each task reads the same stretch of every chain, so that its rows belong to few days."""
    spans = {tp: [Span(tp, f"{tp}/{n}", n, n + 1, 100) for n in range(10)] for tp in (TP0, TP1)}
    tasks = pack(spans, 400)
    assert len(tasks) == 5
    assert [{s.first_offset for s in task} for task in tasks] == [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}]


def test_a_short_chain_is_spread_over_the_tasks_of_a_long_one() -> None:
    spans = {
        TP0: [Span(TP0, f"0/{n}", n, n + 1, 100) for n in range(10)],
        TP1: [Span(TP1, f"1/{n}", n, n + 1, 10) for n in range(10)],
    }
    assert [{s.first_offset for s in task} for task in pack(spans, 550)] == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}]


def test_an_object_beyond_the_target_is_a_task_of_its_own() -> None:
    small = Span(TP0, "a", 0, 1, 10)
    huge = replace(small, key="b", first_offset=1, next_offset=2, size_bytes=5000)
    after = replace(small, key="c", first_offset=2, next_offset=3)
    assert pack({TP0: [small, huge, after]}, 1000) == ((small,), (huge,), (after,))


@pytest.mark.parametrize(
    "parser",
    [
        {"name": "raw"},
        {"name": "regex", "pattern": "(?P<a>.)", "event_time": {"field": "a"}},
        {"name": "delimited", "columns": ["a"], "quote": "none", "event_time": {"field": "a"}},
        {"name": "python", "class": "waybill.parsers.examples:KeyTime", "options": {"digits": 10}},
    ],
)
def test_a_plan_keeps_the_parser_that_it_was_made_with(parser: dict[str, object]) -> None:
    made = plan({TP0: chain(TP0, 0, 10)}, {})
    assert made is not None
    planned = replace(made, parse_settings=ParseSettings.model_validate({"parser": parser}))
    assert Plan.from_json(planned.key, planned.to_json()) == planned


@pytest.mark.parametrize(
    ("object_mib", "slots", "tasks"),
    [(1, 4, 1), (8, 1, 1), (8, 2, 2), (8, 4, 2), (8, 100, 2), (64, 1, 3), (64, 3, 3), (64, 10, 10), (64, 100, 10)],
)
def test_input_for_few_tasks_is_shared_among_the_slots(object_mib: int, slots: int, tasks: int) -> None:
    made = plan({TP0: chain(TP0, *range(11), size_bytes=object_mib << 20)}, {}, 256 << 20, 1 << 40, slots)
    assert made is not None
    assert len(made.tasks) == tasks
    assert [span.first_offset for task in made.tasks for span in task] == list(range(10))
