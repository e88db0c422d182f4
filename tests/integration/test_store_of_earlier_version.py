"""Stores that earlier versions wrote are read, finished and carried on by this one, under the same names.

data/README.md says how the stores were made, and what is in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from earlier_store import ARCHIVE, EarlierStore, contents_of
from replay_databases import NOW, open_database, queue_of, sqlite_connection
from store_differences import AS_IT_LAY, CARRIED_ON, differences

from devstack import Stack
from waybill.archive.chain.chain import ChainStart
from waybill.archive.chain.gaps import Gap
from waybill.base.documents import Stored
from waybill.config.models import load_config
from waybill.replay.requests.database import REVISION
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.states import RequestState
from waybill.services.coordination import CommittedOffset
from waybill.tables.audit.decisions import HoldDecision
from waybill.tables.audit.results import Audit
from waybill.tables.backfill.build import Built
from waybill.tables.backfill.request import BackfillRequest
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.quarantine.staged import StagedRetry

pytestmark = pytest.mark.integration

DATA = Path(__file__).parent / "data"
BEFORE_RENAMING = "store_of_a9ab327.tar.gz"
BEFORE_ROOMS = "store_of_383d7db.tar.gz"

Load = Callable[..., EarlierStore]


@pytest.fixture(scope="module", params=[BEFORE_RENAMING, BEFORE_ROOMS])
def file(request: pytest.FixtureRequest) -> Path:
    return DATA / str(request.param)


@pytest.fixture
def load(file: Path, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Brings the store back on the stack, and points Waybill's code to it."""

    def bring_back(**options: bool) -> EarlierStore:
        store = EarlierStore.load(file, stack, tmp_path, **options)
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        return store

    return bring_back


@pytest.fixture(scope="module")
def packed(file: Path) -> dict[str, bytes]:
    return contents_of(file)


@pytest.fixture(scope="module")
def expected(packed: dict[str, bytes]) -> dict[str, Any]:
    """The pictures that the earlier version gave of the store."""
    return dict(json.loads(packed["expected.json"]))


@pytest.mark.deep
def test_a_store_of_an_earlier_version_is_read_as_that_version_read_it(load: Load, expected: dict[str, Any]) -> None:
    """Chains, messages, gaps, committed offsets, tables, quarantine, dedup, final hours, decisions, replay requests."""
    store = load()
    assert list(differences(expected["as it lay"], store.picture(), but=AS_IT_LAY)) == []


@pytest.mark.deep
def test_work_that_an_earlier_version_left_half_done_is_finished_and_ingest_goes_on(
    load: Load, expected: dict[str, Any]
) -> None:
    """Plans that were made, staged or half committed; then new messages go all the way behind the old ones."""
    store = load(kafka=True)
    store.finish()
    assert list(differences(expected["finished"], store.picture(), but=CARRIED_ON)) == []
    store.go_on()
    assert list(differences(expected["gone on"], store.picture(), but=CARRIED_ON)) == []


def test_committed_offsets_are_rebuilt_from_the_chains_of_an_earlier_version(
    load: Load, expected: dict[str, Any]
) -> None:
    store = load(zookeeper=False)
    rebuilt = {f"{each['topic']}/{each['partition']}": each for each in store.ask("offsets", "rebuild")}
    known = {f"{each['topic']}/{each['partition']}": each for each in expected["as it lay"]["committed"]}
    assert {tp: each["after"] for tp, each in rebuilt.items()} == {tp: each["after"] for tp, each in known.items()}
    assert {(each["before"], each["written"], each["trouble"]) for each in rebuilt.values()} == {(None, True, "")}
    assert [report["sound"] for report in store.ask("verify")] == [True] * len(expected["as it lay"]["streams"])


REWRITE: dict[str, type[Stored]] = {
    r"gaps/.*\.json": Gap,
    r"starts/.*\.json": ChainStart,
    r"plans/[^.]*\.json": Plan,
    r"sweeps/[^.]*\.json": SweepPlan,
    r"retries/[^.]*\.json": StagedRetry,
}
"""The kinds of documents, by their keys."""
REWRITE_LATER: dict[str, type[Stored]] = {
    r"(plans|backfills)/.*\.audit\.json": Audit,
    r"plans/.*\.decision\.json": HoldDecision,
    r"backfills/.*/request\.json": BackfillRequest,
    r"backfills/.*/built\.json": Built,
}
"""Those that only the newer store has."""


@pytest.mark.parametrize(
    ("file", "keys"),
    [*product((BEFORE_RENAMING, BEFORE_ROOMS), REWRITE), *product((BEFORE_ROOMS,), REWRITE_LATER)],
    indirect=["file"],
)
def test_a_document_that_is_read_and_written_again_has_the_same_bytes(packed: dict[str, bytes], keys: str) -> None:
    pattern, kind = re.compile(f"s3/{ARCHIVE}{keys}"), (REWRITE | REWRITE_LATER)[keys]
    found = {key.removeprefix("s3/"): data for key, data in packed.items() if pattern.fullmatch(key)}
    assert found
    assert {key: kind.from_json(key, data).to_json() for key, data in found.items()} == found


def test_a_committed_offset_that_is_read_and_written_again_has_the_same_bytes(packed: dict[str, bytes]) -> None:
    nodes = {path: text.encode() for path, text in json.loads(packed["zookeeper.json"]).items() if text}
    found = {path: data for path, data in nodes.items() if "/offsets/" in path and path.rsplit("/", 1)[1].isdigit()}
    assert found
    assert {path: CommittedOffset.from_document(data, 0, path).to_document() for path, data in found.items()} == found


@pytest.mark.parametrize("file", [BEFORE_ROOMS], indirect=True)
def test_requests_in_the_database_of_an_earlier_version_are_listed_and_read(
    packed: dict[str, bytes], expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "replay.db").write_bytes(packed["replay.db"])
    with open_database(sqlite_connection(tmp_path / "replay.db")) as database:
        assert migrate(database) == (REVISION, REVISION)
        queue = queue_of(database)
        listed = queue.page(limit=10)
        assert [request.document(NOW) for request in listed] == expected["as it lay"]["replays"]
        assert [queue.show(request.request.id) for request in listed] == listed
        assert [request.state for request in listed] == [RequestState.OPEN, RequestState.COMPLETED]


@pytest.mark.parametrize("file", [BEFORE_ROOMS], indirect=True)
def test_the_config_of_an_earlier_version_is_loaded_as_that_version_loaded_it(
    packed: dict[str, bytes], expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "streams.yaml").write_bytes(packed["streams.yaml"])
    loaded = load_config(tmp_path / "streams.yaml").model_dump(mode="json")
    assert list(differences(expected["as it lay"]["config"], loaded)) == []
