"""Read-ahead: the order of requests, bounded memory, and errors raised where the object is read."""

from __future__ import annotations

import io
import threading
import time
from types import TracebackType
from typing import Any, Self

import pytest

from waybill.archive.chain.read_ahead import QUEUE_PIECES, WINDOW, ReadAhead
from waybill.archive.chain.span import Span
from waybill.base.errors import ObjectMissing, StoreUnavailable
from waybill.config.names import TopicPartition

MIB = 1 << 20


class Body(io.BytesIO):
    """The body of an object: counts the bytes that were read, and can raise an error at its end."""

    bytes_read = 0
    error: Exception | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self.bytes_read += len(piece)
        if not piece and self.error is not None:
            raise self.error
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Objects:
    """A store of objects in memory, with the method `open` only."""

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


def read_all(opened: Any, size: int = 700_000) -> bytes:
    with opened:
        return b"".join(iter(lambda: opened.read(size), b""))


def test_objects_of_any_size_are_read_whole_and_in_order() -> None:
    contents = {f"o{n}": bytes([n]) * (n * 777_777) for n in range(25)}
    objects = Objects(**contents)
    with ReadAhead(objects, spans(objects)) as ahead:  # type: ignore[arg-type]
        assert {key: read_all(ahead.open(key)) for key in contents} == contents
    assert sorted(objects.opened) == sorted(contents)


def test_small_objects_are_requested_before_their_turn_and_large_ones_are_not() -> None:
    objects = Objects(a=b"a", b=b"b", c=bytes(QUEUE_PIECES * MIB + 1), d=b"d")
    with ReadAhead(objects, spans(objects)) as ahead:  # type: ignore[arg-type]
        assert read_all(ahead.open("a")) == b"a"
        while "b" not in objects.opened:  # its thread may have to wait for a CPU
            time.sleep(0.001)
        assert read_all(ahead.open("b")) == b"b"
        assert "c" not in objects.opened
        assert len(read_all(ahead.open("c"))) == QUEUE_PIECES * MIB + 1
        assert read_all(ahead.open("d")) == b"d"


def test_read_ahead_is_bounded_and_its_threads_end_with_the_task() -> None:
    objects = Objects(huge=bytes(40 * MIB), **{f"o{n}": b"x" for n in range(20)})
    before = threading.active_count()
    with ReadAhead(objects, spans(objects)) as ahead:  # type: ignore[arg-type]
        opened = ahead.open("huge")
        assert len(opened.read(MIB)) == MIB
        # The pieces in the queue, one that waits for room in the queue, and one that was read.
        assert objects.bodies["huge"].bytes_read <= (QUEUE_PIECES + 2) * MIB
        assert len(objects.opened) <= WINDOW
        opened.close()
    assert threading.active_count() == before


def test_errors_are_raised_when_the_object_is_read() -> None:
    objects = Objects(good=b"g", broken=b"half")
    objects.bodies["broken"].error = StoreUnavailable("cut off")
    with ReadAhead(objects, spans(objects, "gone")) as ahead:  # type: ignore[arg-type]
        assert read_all(ahead.open("good")) == b"g"
        with pytest.raises(StoreUnavailable, match="cut off"):
            read_all(ahead.open("broken"))
        with pytest.raises(ObjectMissing):
            read_all(ahead.open("gone"))


def test_opening_an_object_out_of_order_raises() -> None:
    objects = Objects(a=b"a", b=b"b")
    with ReadAhead(objects, spans(objects)) as ahead, pytest.raises(ValueError, match="not the next object"):  # type: ignore[arg-type]
        ahead.open("b")
