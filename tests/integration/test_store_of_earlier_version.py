"""A store that an earlier version wrote is read, finished and carried on by this one, under the same names.

data/README.md says how the store was made, and what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from earlier_store import ARCHIVE, AS_IT_LAY, CARRIED_ON, EarlierStore, contents_of, differences

from devstack import Stack
from waybill.archive.chain.chain import ChainStart
from waybill.archive.chain.gaps import Gap
from waybill.services.coordination import CommittedOffset
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.quarantine.staged import StagedRetry

pytestmark = pytest.mark.integration

STORE = Path(__file__).parent / "data" / "store_of_a9ab327.tar.gz"

Load = Callable[..., EarlierStore]


@pytest.fixture
def load(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Brings the store back on the stack, and points Waybill's code to it."""

    def bring_back(**options: bool) -> EarlierStore:
        store = EarlierStore.load(STORE, stack, tmp_path, **options)
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        return store

    return bring_back


@pytest.fixture(scope="module")
def packed() -> dict[str, bytes]:
    return contents_of(STORE)


@pytest.fixture(scope="module")
def expected(packed: dict[str, bytes]) -> dict[str, Any]:
    """The pictures that the earlier version gave of the store."""
    return dict(json.loads(packed["expected.json"]))


@pytest.mark.deep
def test_a_store_of_an_earlier_version_is_read_as_that_version_read_it(load: Load, expected: dict[str, Any]) -> None:
    """Chains, messages, gaps, committed offsets, tables, quarantine, dedup, final hours."""
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


REWRITE: dict[str, Callable[[str, bytes], bytes]] = {
    "gaps/": lambda key, data: Gap.from_json(key, data).to_json(),
    "starts/": lambda key, data: ChainStart.from_json(key, data).to_json(),
    "plans/": lambda key, data: Plan.from_json(key, data).to_json(),
    "sweeps/": lambda key, data: SweepPlan.from_json(key, data).to_json(),
    "retries/": lambda key, data: StagedRetry.from_json(key, data).to_json(),
}
"""Reads a document and writes it again, by what its key goes on with."""


@pytest.mark.parametrize("below", REWRITE)
def test_a_document_that_is_read_and_written_again_has_the_same_bytes(packed: dict[str, bytes], below: str) -> None:
    documents = {key.removeprefix("s3/"): data for key, data in packed.items() if f"s3/{ARCHIVE}{below}" in key}
    found = {k: data for k, data in documents.items() if k.endswith(".json") and not k.endswith(".staged.json")}
    assert found
    assert {key: REWRITE[below](key, data) for key, data in found.items()} == found


def test_a_committed_offset_that_is_read_and_written_again_has_the_same_bytes(packed: dict[str, bytes]) -> None:
    nodes = {path: text.encode() for path, text in json.loads(packed["zookeeper.json"]).items() if text}
    found = {path: data for path, data in nodes.items() if "/offsets/" in path and path.rsplit("/", 1)[1].isdigit()}
    assert found
    assert {path: CommittedOffset.from_document(data, 0, path).to_document() for path, data in found.items()} == found
