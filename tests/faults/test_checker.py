"""The checker finds each kind of fault; these tests need no server."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import checker, s3_proxy
from chaos.checker import Checked, FaultKind, ObjectWatch
from chaos.producers import Ledger
from chaos.rounds import round_of, rounds
from chaos.scenario import draw, draw_server_fault
from kafka.record.default_records import DefaultRecordBatchBuilder

pytestmark = pytest.mark.faults

PREFIX = "a/backup/t/"


class Bucket:
    """The S3 client methods that the checker needs, on a dict."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def get_paginator(self, _: str) -> Bucket:
        return self

    def paginate(self, **_: object) -> Iterator[dict[str, Any]]:
        yield {
            "Contents": [
                {"Key": k, "ETag": hash(v), "Size": len(v), "LastModified": 0} for k, v in self.objects.items()
            ]
        }

    def get_object(self, Key: str, **_: object) -> dict[str, Any]:  # noqa: N803
        return {"Body": io.BytesIO(self.objects[Key])}


def batch(first: int, next_offset: int) -> bytes:
    """Messages `p:<offset>` of those offsets."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for offset in range(first, next_offset):
        builder.append(offset - first, 0, b"p:%06d" % offset, b"value", [])
    data = bytearray(builder.build())
    data[:8] = first.to_bytes(8, "big")  # outside of the CRC
    return bytes(data)


def name(first: int) -> str:
    return f"{PREFIX}1_0_{first:020d}.kafka"


def found(objects: dict[str, bytes], in_kafka: int, ledger: Ledger | None = None) -> dict[str, int]:
    """The faults of one topic-partition whose log is `[0, in_kafka)`, by kind."""
    checked = Checked()
    chain = checker._read_chains(Bucket(objects), "b", PREFIX, checked).get(0, [])
    archive = {0: checker._check_chain("t/0", chain, checked)}
    log = [checker._Record(offset, b"p:%06d" % offset, b"value") for offset in range(in_kafka)]
    checker._compare("t/0", archive[0], log, checked)
    every = {record.key: (0, record.offset) for record in log}
    checker._check_ledger("t", archive, ledger or Ledger(acknowledged=every), checked)
    counts: dict[str, int] = {}
    for fault in checked.faults:
        counts[fault.kind] = max(counts.get(fault.kind, 0), fault.count)
    return counts


def test_a_sound_chain_has_no_faults() -> None:
    assert found({name(0): batch(0, 5) + batch(5, 9), name(9): batch(9, 12)}, 12) == {}


def test_a_hole_between_objects_is_a_loss() -> None:
    counts = found({name(0): batch(0, 5), name(9): batch(9, 12)}, 12)
    assert counts[FaultKind.LOST] == 4
    assert counts[FaultKind.BROKEN] == 1


def test_a_missing_end_is_a_loss() -> None:
    assert found({name(0): batch(0, 5)}, 12) == {FaultKind.LOST: 7}


def test_objects_that_overlap_repeat() -> None:
    counts = found({name(0): batch(0, 8), name(5): batch(5, 12)}, 12)
    assert counts[FaultKind.REPEATED] == 3
    assert counts[FaultKind.OUT_OF_ORDER] >= 1


def test_what_an_aborted_transaction_wrote_is_seen() -> None:
    ledger = Ledger(acknowledged={b"p:000000": (0, 0)}, aborted={b"p:000001"})
    assert found({name(0): batch(0, 2)}, 1, ledger)[FaultKind.ABORTED] == 1


def test_what_nobody_wrote_is_seen() -> None:
    assert found({name(0): batch(0, 2)}, 2, Ledger(acknowledged={b"p:000000": (0, 0)}))[FaultKind.FOREIGN] == 1


def test_a_message_of_unknown_outcome_may_be_there_or_not() -> None:
    ledger = Ledger(acknowledged={b"p:000000": (0, 0)}, unknown={b"p:000001", b"p:000002"})
    assert found({name(0): batch(0, 2)}, 2, ledger) == {}


def test_an_acknowledged_message_may_be_anywhere_only_if_kafka_did_not_say_where() -> None:
    elsewhere = Ledger(acknowledged={b"p:000000": (0, 0), b"p:000001": (0, 0)})
    assert found({name(0): batch(0, 2)}, 2, elsewhere) == {FaultKind.LOST: 1}
    unknown = Ledger(acknowledged={b"p:000000": (0, 0), b"p:000001": (0, -1001)})
    assert found({name(0): batch(0, 2)}, 2, unknown) == {}
    absent = Ledger(acknowledged={b"p:000000": (0, 0), b"p:000001": (0, -1001), b"p:000002": (0, -1001)})
    assert found({name(0): batch(0, 2)}, 2, absent) == {FaultKind.LOST: 1}


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_damaged_object_is_seen(damage: Any) -> None:
    counts = found({name(0): damage(batch(0, 5))}, 5)
    assert counts[FaultKind.BROKEN] == 1
    assert counts[FaultKind.LOST] == 5


def test_an_object_that_changes_is_seen() -> None:
    bucket = Bucket({name(0): b"one", name(1): b"two"})
    watch = ObjectWatch(bucket, "b", PREFIX)
    watch.look()
    assert not watch.changed
    bucket.objects[name(0)] = b"other"
    del bucket.objects[name(1)]
    watch.look()
    assert watch.changed == {name(0), name(1)}


def test_the_checker_shares_no_code_with_waybill() -> None:
    for module in (checker, s3_proxy):
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not [each for each in imported if str(each).split(".")[0] in ("waybill", "devstack")]


def test_a_seed_is_the_same_scenario_every_time_and_seeds_differ() -> None:
    assert draw(17) == draw(17)
    assert len({draw(seed) for seed in range(1, 101)}) == 100
    assert draw_server_fault(3) is draw_server_fault(3)


def test_a_seed_meets_the_same_server_fault_alone_and_with_others() -> None:
    assert [(number, seeds) for number, seeds in rounds(3, 4)] == [(0, [3, 4]), (1, [5, 6])]
    assert round_of(6) == 1
