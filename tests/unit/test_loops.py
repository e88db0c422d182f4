"""In each loop over topic-partitions, streams, tables, requests and the like, one element that raises stops no other.

Each `Loop` runs a loop of Waybill in which one element raises an exception that no code expects. The others must be
done, the failure must be reported with its class and place, and the result must not be a success. A new loop gets a
line in `LOOPS`. `test_no_loop_catches_only_known_errors` finds loops that catch nothing but errors of Waybill.
"""

from __future__ import annotations

import ast
import contextlib
import io
import logging
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from group_configs import config_of

import waybill.base.errors as all_errors
from waybill.archive.chain import chain, spans
from waybill.archive.chain.object_scan import ObjectScan
from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import find_fault
from waybill.archive.ingest import offset_changes
from waybill.archive.restore import comparison, restore_run
from waybill.base.errors import StoreUnavailable, UnexpectedFailure
from waybill.config.connections import Connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.config.models.replay import ReplayQuotas
from waybill.config.names import TopicPartition
from waybill.interfaces.cli.targets import StreamsAlone
from waybill.replay.requests import worker
from waybill.replay.requests.claims import Claims
from waybill.replay.requests.database import Database
from waybill.replay.requests.index import job as index_job
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.queue import Queue
from waybill.replay.requests.request import Requested
from waybill.replay.requests.stored import StoredRequest
from waybill.replay.requests.targets import S3Target
from waybill.services.coordination.coordinator import Coordinator
from waybill.tables.maintenance import maintenance_run
from waybill.tables.maintenance.procedures import TableReport, TableSize
from waybill.tables.partition import partition_plan
from waybill.tables.partition import tasks as partition_tasks
from waybill.tables.spark import group_job
from waybill.watch.metrics import families
from waybill.watch.promises.measure import Measured
from waybill.watch.verify import archive as verify_archive
from waybill.watch.verify import shards as verify_shards
from waybill.watch.verify.verify_report import VerifyReport

PACKAGE = Path(all_errors.__file__).parents[1]
NOW_MS = 1_800_000_000_000
ELEMENTS = ("a", "b", "c")
BROKEN = "b"


@dataclass
class Ran:
    """What a loop did."""

    done: Collection[str]
    reported: str
    """What its caller is told."""
    succeeded: bool


@dataclass
class Work:
    """Does one element's work: notes it, or raises for the broken one."""

    done: list[str] = field(default_factory=list)
    error: Exception = field(default_factory=lambda: KeyError("x"))

    def __call__(self, element: str) -> str:
        if element == BROKEN:
            raise self.error
        self.done.append(element)
        return element


def tps_of(elements: Collection[str]) -> list[TopicPartition]:
    return [TopicPartition(each, 0) for each in elements]


class Ignored:
    """Listens to nothing."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


# --- the loops --------------------------------------------------------------------------------------------------------


def maintain(monkeypatch: pytest.MonkeyPatch, work: Work, *, of_tables: bool) -> Ran:
    """Maintain a stream whose tables are `a`, `b`, `c` and `d`, or with three more steps of these names."""
    tables = {name: SimpleNamespace(name=lambda name=name: (name,), metadata=None) for name in "abcd"}
    main = SimpleNamespace(main=tables["a"], quarantine=tables["b"])
    dedup = SimpleNamespace(unique=tables["c"], duplicates=tables["d"])

    class Steps:
        def __init__(self, *_: object) -> None: ...

        def maintain(self, table: Any, *_: object) -> TableReport:
            [name] = table.name()
            if of_tables:
                work(name)
            return TableReport(name, TableSize(), TableSize(), ())

    @contextmanager
    def services(*_: object) -> Iterator[Namespace]:
        yield Namespace(store=None, catalog=None)

    def step(name: str) -> Callable[..., dict[str, int]]:
        return lambda *_: {} if of_tables else {name: len(work(name))}

    run = maintenance_run._MaintenanceRun
    for method, name in (
        ("_remove_abandoned_branches", "a"),
        ("_remove_passed_plans", "b"),
        ("_remove_key_index_files", "c"),
        ("_remove_orphaned_index_objects", "d"),
    ):
        monkeypatch.setattr(run, method, step(name))
    monkeypatch.setattr(run, "_read_plans", lambda *_: None)
    monkeypatch.setattr(run, "_read_sweep_plans", lambda *_: None)
    for name, value in {
        "services_of": services,
        "find_connection": lambda _: None,
        "S3Endpoint": SimpleNamespace(of=lambda _: None),
        "load_tables": lambda *_: main,
        "load_dedup_tables": lambda *_: dedup,
        "is_live": lambda *_: True,
        "end_open_change": lambda *_: None,
        "finish_retries": lambda *_: [],
        "TableMaintenance": Steps,
    }.items():
        monkeypatch.setattr(maintenance_run, name, value)
    config = config_of(s={"dedup": {"window": "7d"}})
    try:
        maintenance_run.run_maintenance(config, "s", lambda: pytest.fail("no procedure is needed"))
    except UnexpectedFailure as failure:
        return Ran({*work.done} - {"d"}, str(failure), succeeded=False)
    return Ran(work.done, "", succeeded=True)


def tables_of_maintenance(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    return maintain(monkeypatch, work, of_tables=True)


def steps_of_maintenance(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    ran = maintain(monkeypatch, work, of_tables=False)
    return Ran({*ran.done}, ran.reported, ran.succeeded)


def audits_of_a_group(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    def append(_: object, audits: list[Any]) -> None:
        if len(audits) > 1:
            raise work.error
        work(audits[0].stream)

    monkeypatch.setattr(group_job, "append_results", append)
    works = [group_job.StreamWork("partition", each) for each in ELEMENTS]
    run = group_job._Run(None, None, None, Namespace(catalog=None), None, None)  # type: ignore[arg-type]
    run._append_audits([Namespace(stream=each) for each in ELEMENTS], works, None)  # type: ignore[misc]
    alerts = [alert for each in works for alert in each.alerts]
    return Ran(work.done, " ".join(alerts), all(each.result().is_sound for each in works))


def chains_that_are_verified(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    tps, report = tps_of(ELEMENTS), VerifyReport("s", 1)

    def scan(_: object, stored: Any) -> ObjectScan:
        work(stored.name.topic)
        return ObjectScan(5, 5, None, None)

    def listed(topic: str, *_: object) -> list[Any]:
        name = SimpleNamespace(topic=topic, first_offset=0, extension="kafka")
        return [SimpleNamespace(name=name, key=topic, size_bytes=1)]

    monkeypatch.setattr(verify_archive, "scan_object", scan)
    monkeypatch.setattr(verify_archive, "find_chain_start", lambda *_: None)
    store: Any = SimpleNamespace(list_chain=listed, prefix="")
    found = verify_archive.check_archive(store, 1, tps, lambda _: None, list, report, Ignored())
    return Ran([tp.topic for tp in found], " ".join(map(str, report.faults)), report.is_sound)


def committed_offsets_that_are_verified(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    report = VerifyReport("s", 1)
    monkeypatch.setattr(verify_archive, "find_chain_start", lambda *_: None)
    store: Any = SimpleNamespace(list_chain=lambda *_: [], prefix="")
    verify_archive.check_archive(
        store, 1, tps_of(ELEMENTS), lambda tp: (work(tp.topic), None)[1], list, report, Ignored()
    )
    return Ran(dict.fromkeys(work.done), " ".join(map(str, report.faults)), report.is_sound)


def topics_of_shards_that_are_verified(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    report = VerifyReport("s", 1)
    monkeypatch.setattr(verify_shards, "_check_topic", lambda _store, _generation, topic, *_: work(topic))
    archive: Any = {
        tp: SimpleNamespace(tp=tp, objects=[SimpleNamespace(slot_state="state")]) for tp in tps_of(ELEMENTS)
    }
    verify_shards.check_shards(None, 1, archive, report)  # type: ignore[arg-type]
    return Ran(work.done, " ".join(map(str, report.faults)), report.is_sound)


def parts_of_the_metrics(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    log = LogTexts.of("waybill.watch.metrics.families", monkeypatch)
    monkeypatch.setattr(families, "_of_promises", lambda _: (work("a"), ())[1])
    monkeypatch.setattr(families, "_of_services", lambda _: (work("b"), ())[1])
    monkeypatch.setattr(families, "_of_usage", lambda *_: (work("c"), ())[1])
    found = list(families.metric_families(Measured([], None, {}), [], 0.5, NOW_MS, []))
    up = {each.labels["part"]: each.value for family in found if "figures_up" in family.name for each in family.samples}
    assert [part for part, value in up.items() if not value] in ([], ["services"])
    return Ran(work.done, log.text, all(up.values()))


def chains_of_a_partition_run(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    def walk(_: object, __: object, tp: TopicPartition, **___: object) -> Iterator[str]:
        yield work(tp.topic)

    monkeypatch.setattr(chain, "walk_chain", walk)
    store: Any = SimpleNamespace(chains=lambda _: [])
    objects, faults = partition_plan.list_chains(store, [], 1, dict.fromkeys(tps_of(ELEMENTS), 0), {})
    return Ran([tp.topic for tp, found in objects.items() if found], " ".join(faults), not faults)


def objects_of_a_partition_task(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    """Each task of three, and the check of the next plan, which must find the same fault."""
    faults = []
    monkeypatch.setattr(partition_tasks, "read_span", lambda _store, span, **_: iter([work(span.tp.topic)]))
    monkeypatch.setattr(spans, "read_span", lambda _store, span, **_: iter([work(span.tp.topic)]))
    for tp in tps_of(ELEMENTS):
        run = object.__new__(partition_tasks._TaskRun)
        run._task, run._store, run._limits = (Span(tp, f"k{tp}", 5, 9, 1),), None, None  # type: ignore[assignment]
        run._objects_in_part = frozenset()
        found = None
        try:
            read = [each for each, _ in run._read_spans(None)]  # type: ignore[arg-type]
        except partition_tasks._UnreadableSpan as error:
            read, found = [], error.fault
            faults.append(found.message)
        assert (read, found is None) == (([tp], True) if found is None else ([], False))
        # The next plan looks for the fault again, before it executes tasks in vain.
        again = find_fault(None, run._task[0])  # type: ignore[arg-type]
        assert (again and (again.tp, again.offset)) == (found and (tp, 5))
    return Ran({*work.done}, " ".join(faults), not faults)


def topic_partitions_of_a_restore(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    monkeypatch.setattr(restore_run._Partition, "_advance", lambda each: bool(work(each.plan.target.topic)) and False)
    partitions = [SimpleNamespace(source=tp, target=tp, first_offset=0, target_offset=0) for tp in tps_of(ELEMENTS)]
    target: Any = SimpleNamespace(
        producer=SimpleNamespace(wait_for_room=lambda tps: next(iter(tps)), forget=lambda _: None)
    )
    plan: Any = SimpleNamespace(partitions=partitions)
    results = restore_run._restore(None, target, plan, lambda: False, lambda _: None)  # type: ignore[arg-type]
    errors = [str(each.error) for each in results if each.error is not None]
    return Ran(work.done, " ".join(errors), not errors)


def topic_partitions_of_a_comparison(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    def offsets(tps: list[TopicPartition]) -> Any:
        work(tps[0].topic)
        return {tps[0]: SimpleNamespace(earliest=0, end=0)}

    for name in ("check_target", "_compare_frames", "_target_frames"):
        monkeypatch.setattr(comparison, name, lambda *_: None)
    partitions = [SimpleNamespace(source=tp, target=tp, target_offset=0) for tp in tps_of(ELEMENTS)]
    target: Any = SimpleNamespace(log=SimpleNamespace(offsets=offsets))
    plan: Any = SimpleNamespace(partitions=partitions)
    found = list(comparison.compare(None, target, plan))  # type: ignore[arg-type]
    differences = [each.difference for each in found if each.difference]
    return Ran(work.done, " ".join(differences), not differences)


def imported_offsets(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    @contextmanager
    def lock(_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(offset_changes, "_start_chain", lambda _s, _t, tp, *_: work(tp.topic))
    coordinator = SimpleNamespace(lock=lock, write_committed=lambda *_, **__: None)
    proposals = [
        offset_changes.ImportProposal(tp, 5, None, offset_changes.ImportCheck.IMPORT) for tp in tps_of(ELEMENTS)
    ]
    services: Any = SimpleNamespace(coordinator=coordinator)
    results = list(offset_changes.import_offsets(services, None, proposals, None))  # type: ignore[arg-type]
    errors = [error for _, error in results if error]
    return Ran(work.done, " ".join(errors), not errors)


def streams_of_the_replay_index(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    def index(_: object, name: str, **__: object) -> index_job.StreamIndexed:
        work(name)
        return index_job.StreamIndexed()

    monkeypatch.setattr(index_job, "index_stream", index)
    found = index_job.index_all(None, ELEMENTS)  # type: ignore[arg-type]
    errors = [str(error) for each in found.values() for error in each.all_errors]
    return Ran(work.done, " ".join(errors), not errors)


def chains_of_the_replay_index(monkeypatch: pytest.MonkeyPatch, work: Work, _: Path) -> Ran:
    @contextmanager
    def opened(value: Any) -> Iterator[Any]:
        yield value

    def extend(_: object, __: int, tp: TopicPartition, *___: object, **____: object) -> index_job.ReplayIndexFigures:
        work(tp.topic)
        return index_job.ReplayIndexFigures()

    committed = {tp: SimpleNamespace(committed_offset=5) for tp in tps_of(ELEMENTS)}
    coordinator = SimpleNamespace(list_committed=lambda: committed)
    monkeypatch.setattr(index_job, "Store", SimpleNamespace(of=lambda *_: opened(None)))
    monkeypatch.setattr(index_job, "Coordinator", SimpleNamespace(of=lambda *_: opened(coordinator)))
    monkeypatch.setattr(index_job, "extend_index", extend)
    done = index_job.index_stream(config_of(s={}), "s")
    return Ran(work.done, " ".join(map(str, done.all_errors)), not done.all_errors)


@contextmanager
def stored_requests(folder: Path) -> Iterator[tuple[Database, Queue]]:
    """Yield a database with a request of each requester."""
    endpoint = DatabaseEndpoint.of(Connection(conn_id="r", conn_type="sqlite", host=str(folder / "replay.db")))
    with Database(endpoint, retry_seconds=1.0) as database:
        migrate(database)
        queue = Queue(database, ReplayQuotas())
        for number, requester in enumerate(ELEMENTS):
            queue.create(Requested("s", (b"k",), NOW_MS - 9_000, NOW_MS, S3Target(), 0), requester, NOW_MS + number)
        yield database, queue


def damage(monkeypatch: pytest.MonkeyPatch, work: Work) -> None:
    """Let the reader of a row raise for one requester."""
    read = StoredRequest.of

    def read_or_raise(row: Any) -> StoredRequest:
        Work(error=work.error)(row["requester"])
        return read(row)

    monkeypatch.setattr(StoredRequest, "of", read_or_raise)


def claimed_requests(monkeypatch: pytest.MonkeyPatch, work: Work, folder: Path) -> Ran:
    with stored_requests(folder) as (database, _):
        damage(monkeypatch, work)
        claims = Claims(database, timedelta(minutes=1))
        while claim := claims.claim("w", NOW_MS + 10):
            work.done.append(claim.request.requester)
    return Ran(work.done, " ".join(map(str, claims.unreadable.values())), not claims.unreadable)


def listed_requests(monkeypatch: pytest.MonkeyPatch, work: Work, folder: Path) -> Ran:
    with stored_requests(folder) as (_, queue):
        damage(monkeypatch, work)
        first = queue.page(limit=2)
        page = [*first, *queue.page(before_id=first.next_before)]
    return Ran([each.request.requester for each in page], " ".join(str(each.error) for each in first.unreadable), False)


def served_requests(monkeypatch: pytest.MonkeyPatch, work: Work, folder: Path) -> Ran:
    """The work on a request raises, and then even storing why."""
    config = config_of(s={}).model_copy(update={"replay": SimpleNamespace(claim_timeout=timedelta(minutes=1))})
    with stored_requests(folder) as (database, _):
        monkeypatch.setattr(
            worker, "Database", SimpleNamespace(of=lambda _: contextmanager(lambda: iter([database]))())
        )
        monkeypatch.setattr(worker._Turn, "_serve", lambda turn: work(turn._request.requester))
        monkeypatch.setattr(worker._Turn, "_try_later", lambda *_: [][1])
        monkeypatch.setattr(worker, "_now_ms", lambda: NOW_MS + 10)
        served = worker.serve(config, worker="w", seconds=20)
    return Ran(work.done, " ".join(served.problems), not served.problems)


def streams_of_a_command(_: pytest.MonkeyPatch, work: Work, __: Path) -> Ran:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), StreamsAlone() as alone:
            found = alone.read(ELEMENTS, work)
    except typer.Exit as end:
        return Ran(found, said.getvalue(), succeeded=end.exit_code == 0)
    return Ran(found, "", succeeded=True)


class LogTexts(logging.Handler):
    """Collects what a logger logs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    @classmethod
    def of(cls, name: str, monkeypatch: pytest.MonkeyPatch) -> LogTexts:
        handler = cls()
        monkeypatch.setattr(logging.getLogger(name), "handlers", [handler])
        return handler

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    @property
    def text(self) -> str:
        return " ".join(self.texts)


Loop = Callable[[pytest.MonkeyPatch, Work, Path], Ran]
LOOPS: list[Loop] = [
    tables_of_maintenance,
    steps_of_maintenance,
    audits_of_a_group,
    chains_that_are_verified,
    committed_offsets_that_are_verified,
    topics_of_shards_that_are_verified,
    parts_of_the_metrics,
    chains_of_a_partition_run,
    objects_of_a_partition_task,
    topic_partitions_of_a_restore,
    topic_partitions_of_a_comparison,
    imported_offsets,
    streams_of_the_replay_index,
    chains_of_the_replay_index,
    claimed_requests,
    listed_requests,
    served_requests,
    streams_of_a_command,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda each: each.__name__)
def test_element_that_raises_is_reported_and_the_others_are_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loop: Loop
) -> None:
    ran = loop(monkeypatch, Work(), tmp_path)
    assert sorted(ran.done) == [each for each in ELEMENTS if each != BROKEN]
    assert "unexpected " in ran.reported
    assert " at " in ran.reported
    assert not ran.succeeded


@pytest.mark.parametrize(
    "loop",
    [
        tables_of_maintenance,
        steps_of_maintenance,
        chains_that_are_verified,
        chains_of_a_partition_run,
        objects_of_a_partition_task,
        streams_of_the_replay_index,
        chains_of_the_replay_index,
        topic_partitions_of_a_comparison,
        streams_of_a_command,
    ],
    ids=lambda each: each.__name__,
)
def test_service_that_does_not_answer_ends_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loop: Loop
) -> None:
    with pytest.raises(StoreUnavailable):
        loop(monkeypatch, Work(error=StoreUnavailable("S3 is away")), tmp_path)


def test_damaged_node_of_the_journal_is_the_stop_of_its_topic_partition_alone() -> None:
    sound = b'{"v":1,"error":"ChainBroken","message":"m","figures":{},"stopped_at":5}'
    nodes = {f"/s/{each}/0": (b"\x00" if each == BROKEN else sound, 1) for each in ELEMENTS}
    deleted: list[str] = []
    session: Any = SimpleNamespace(
        children=lambda path: ["0"] if path.count("/") > 1 else list(ELEMENTS),
        get=nodes.__getitem__,
        put=lambda path, content, _: nodes.update({path: (content, 2)}),
        delete=lambda path, _: deleted.append(path) or True,
    )
    paths: Any = SimpleNamespace(stops="/s", stop=lambda tp: f"/s/{tp}")
    coordinator = Coordinator(session, paths)
    stops = {stop.tp.topic: stop for stop in coordinator.list_stops()}
    assert {topic: stop.error for topic, stop in stops.items()} == {
        "a": "ChainBroken",
        "b": "DocumentDamaged",
        "c": "ChainBroken",
    }
    # The lane of the topic-partition can replace and remove it.
    tp = TopicPartition(BROKEN, 0)
    assert coordinator.clear_stop(tp, unexpected=False)
    assert deleted == ["/s/b/0"]
    coordinator.record_stop(tp, UnexpectedFailure("b/0", KeyError("x")))
    assert {stop.tp.topic: stop.error for stop in coordinator.list_stops()}[BROKEN] == "UnexpectedFailure"


def test_damaged_node_of_one_slot_hides_no_other_slot() -> None:
    nodes = {
        "/r/a/0": (b"{", 1),
        "/r/b/0": (b'{"v":1,"archived_to_ms":7,"shards":2}', 1),
        "/r/c/0": (b'{"v":1,"shards":[]}', 1),
    }
    session: Any = SimpleNamespace(get_all=lambda _: nodes)
    paths: Any = SimpleNamespace(slot_read=lambda tp: f"/r/{tp}")
    read = Coordinator(session, paths).read_slot_reads(tps_of(ELEMENTS))
    assert {tp.topic: (each.archived_to_ms, each.shards) for tp, each in read.items()} == {"b": (7, 2)}


# --- the next loop ----------------------------------------------------------------------------------------------------

KNOWN_ERRORS = {name for name, value in vars(all_errors).items() if isinstance(value, type)}
_CALLER = "its caller catches the others, for the same element"
_ATTEMPTS = "a loop of attempts at one thing, not over elements"
_ONE = "one request of a person or one call: an unexpected exception is its end, and is shown"
_EXPLAINS = "it only explains an error that goes up in any case"
_WHOLE = "the result of one task, stream or process: the exception goes up, and fails it"
_DOCUMENT = "the parsers of the documents turn each exception into these errors"
NO_ELEMENT: dict[str, str] = {
    "archive/restore/refusal.py:_archived_offset": _EXPLAINS,
    "archive/restore/refusal.py:_config": _EXPLAINS,
    "tables/backfill/promotion.py:change_range": _ATTEMPTS,
    "watch/kafka_cluster/readings.py:_without_markers": _CALLER,
    "interfaces/cli/__init__.py:run": _ONE,
    "services/coordination/coordinator.py:_parse_committed": _DOCUMENT,
    "services/coordination/coordinator.py:list_stops": _DOCUMENT,
    "services/coordination/coordinator.py:read_slot_reads": _DOCUMENT,
    "services/coordination/usage.py:add": _WHOLE,
    "services/coordination/usage.py:store_usage": _WHOLE,
    "tables/dedup/execute.py:_result_of": _WHOLE,
    "tables/dedup/first_sweep.py:_readable_progress": "it looks for the first snapshot that can be read",
    "tables/dedup/index_build.py:_build_until_saved": _ATTEMPTS,
    "tables/dedup/sweep.py:extend_index": _WHOLE,
    "tables/dedup/sweep.py:merge_index": _WHOLE,
    "watch/incidents/interim_books.py:read_all": "an object that another watch has merged is no failure",
    "archive/ingest/gap_acceptance.py:accept_gap": _ATTEMPTS,
    "archive/ingest/kinesis/slot_fetching.py:_record_slot_read": _CALLER,
    "archive/ingest/lane.py:_commit_to_consumer_group": _CALLER,
    "archive/ingest/orphaned_uploads.py:abort_orphaned_uploads": _CALLER,
    "archive/ingest/protocol.py:_run_rounds": _ATTEMPTS,
    "tables/maintenance/table.py:_retry_if_moved": _ATTEMPTS,
    "tables/partition/files_sink/finalize.py:fetch_log_ends": "the stream's finalizer fails, and no hour becomes final",
    "tables/partition/files_sink/upload.py:_create": _ATTEMPTS,
    "replay/requests/archived.py:_indexed_blocks": _ATTEMPTS,
    "tables/spark/execute.py:_scan": _WHOLE,
    "tables/spark/execute.py:result_or_error": _WHOLE,
    "tables/spark/group_job.py:_append": _CALLER,
    "tables/spark/group_job.py:run_application": _WHOLE,
    "tables/staging/services.py:store_usage": _WHOLE,
    "services/store/fitness.py:_remember": _WHOLE,
    "services/store/probe.py:_try_to_remove": _WHOLE,
    "watch/promises/status_writer.py:_read_before": _CALLER,
    "interfaces/web/actions.py:take": _ONE,
    "interfaces/web/trace.py:__call__": _ONE,
}
"""Places that catch errors of Waybill and not the others, and why they need not."""


def names_of(kind: ast.expr | None) -> set[str]:
    if kind is None:
        return {"Exception"}
    if isinstance(kind, ast.Tuple):
        return set().union(*map(names_of, kind.elts))
    if isinstance(kind, ast.BinOp):
        return names_of(kind.left) | names_of(kind.right)
    return {kind.id if isinstance(kind, ast.Name) else kind.attr if isinstance(kind, ast.Attribute) else ""}


def catches_only_known_errors(tried: ast.Try, *, in_a_loop: bool) -> bool:
    """Return whether a `try` goes on after errors of Waybill, and no part of it knows what to do about the others."""
    kinds = [(names_of(handler.type), handler) for handler in tried.handlers]
    if any({"Exception", "BaseException"} & kind for kind, _ in kinds):
        return False
    wanted = KNOWN_ERRORS if in_a_loop else {"WaybillError"}
    return any(kind & wanted and not isinstance(handler.body[-1], ast.Raise) for kind, handler in kinds)


def places(path: Path) -> Iterator[str]:
    def walk(node: ast.AST, function: str, in_a_loop: bool) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, child.name, False)
                continue
            if isinstance(child, ast.Try) and catches_only_known_errors(child, in_a_loop=in_a_loop):
                yield f"{path.relative_to(PACKAGE).as_posix()}:{function}"
            yield from walk(child, function, in_a_loop or isinstance(child, ast.For | ast.AsyncFor))

    yield from walk(ast.parse(path.read_text()), "", False)


def test_no_loop_catches_only_known_errors() -> None:
    """A `for` that goes on after an error of Waybill, or a function after any of them, must know the others, too."""
    found = {place for path in sorted(PACKAGE.rglob("*.py")) for place in places(path)}
    assert found - NO_ELEMENT.keys() == set(), "report an unexpected exception of one element, or add the reason here"
    assert NO_ELEMENT.keys() - found == set(), "these are gone: remove them"
