from __future__ import annotations

import io
import threading
import time
from types import TracebackType
from typing import Any, Self

import pytest

from waybill.archive.read_ahead import QUEUE_PIECES, WINDOW, ReadAhead
from waybill.archive.spans import Span
from waybill.errors import ObjectMissing, StoreUnavailable
from waybill.names import TopicPartition

MIB = 1 << 20


class Body(io.BytesIO):
    """Bytes that may end in a fault, and that know how many of them were taken."""

    taken = 0
    fault: Exception | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self.taken += len(piece)
        if not piece and self.fault is not None:
            raise self.fault
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Objects:
    """What a store's `open` does, for objects in memory."""

    def __init__(self, **contents: bytes) -> None:
        self.bodies = {key: Body(content) for key, content in contents.items()}
        self.opened: list[str] = []

    def open(self, key: str) -> Any:
        self.opened.append(key)
        if key not in self.bodies:
            raise ObjectMissing(key)
        return self.bodies[key]


def spans(objects: Objects, *missing: str) -> list[Span]:
    sizes = {key: len(body.getvalue()) for key, body in objects.bodies.items()} | dict.fromkeys(missing, 1)
    return [Span(TopicPartition("t", 0), key, 0, 1, size) for key, size in sizes.items()]


def whole(opened: Any, size: int = 700_000) -> bytes:
    with opened:
        return b"".join(iter(lambda: opened.read(size), b""))


def test_every_object_is_read_whole_and_in_order_whatever_its_size() -> None:
    contents = {f"o{n}": bytes([n]) * (n * 777_777) for n in range(25)}
    objects = Objects(**contents)
    with ReadAhead(objects, spans(objects)) as ahead:  # type: ignore[arg-type]
        assert {key: whole(ahead.open(key)) for key in contents} == contents
    assert sorted(objects.opened) == sorted(contents)


def test_small_objects_are_asked_for_before_their_turn_and_a_large_one_is_not() -> None:
    objects = Objects(a=b"a", b=b"b", c=bytes(QUEUE_PIECES * MIB + 1), d=b"d")
    with ReadAhead(objects, spans(objects)) as ahead:  # type: ignore[arg-type]
        assert whole(ahead.open("a")) == b"a"
        while "b" not in objects.opened:  # its thread may have to wait for a processor
            time.sleep(0.001)
        assert whole(ahead.open("b")) == b"b"
        assert "c" not in objects.opened
        assert len(whole(ahead.open("c"))) == QUEUE_PIECES * MIB + 1
        assert whole(ahead.open("d")) == b"d"


def test_what_is_read_ahead_is_bounded_and_ends_with_the_task() -> None:
    objects = Objects(huge=bytes(40 * MIB), **{f"o{n}": b"x" for n in range(20)})
    before = threading.active_count()
    with ReadAhead(objects, spans(objects)) as ahead:  # type: ignore[arg-type]
        opened = ahead.open("huge")
        assert len(opened.read(MIB)) == MIB
        # In the queue, one that waits for room in it, one that was read.
        assert objects.bodies["huge"].taken <= (QUEUE_PIECES + 2) * MIB
        assert len(objects.opened) <= WINDOW
        opened.close()
    assert threading.active_count() == before


def test_faults_come_out_where_the_object_is_read() -> None:
    objects = Objects(good=b"g", broken=b"half")
    objects.bodies["broken"].fault = StoreUnavailable("cut off")
    with ReadAhead(objects, spans(objects, "gone")) as ahead:  # type: ignore[arg-type]
        assert whole(ahead.open("good")) == b"g"
        with pytest.raises(StoreUnavailable, match="cut off"):
            whole(ahead.open("broken"))
        with pytest.raises(ObjectMissing):
            whole(ahead.open("gone"))


def test_objects_out_of_turn_are_refused() -> None:
    objects = Objects(a=b"a", b=b"b")
    with ReadAhead(objects, spans(objects)) as ahead, pytest.raises(ValueError, match="not the next object"):  # type: ignore[arg-type]
        ahead.open("b")
