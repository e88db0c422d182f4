"""The page Trace: the only page that sends requests to S3 and the catalog, when a person requests a message.

Few traces run at a time, in a separate thread pool, and further traces are refused at once. A page waits for its trace
only for a limited time, since S3 and the catalog may hang for minutes. So traces never use the threads that Airflow's
own pages need.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from waybill.base.errors import ConfigError, StoreUnavailable, WaybillError
from waybill.config.models import Config
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.interfaces.web.figures import bytes_text, count_text
from waybill.interfaces.web.frame import Links
from waybill.interfaces.web.trace_page import (
    Field,
    MessagePlace,
    MessageView,
    ObjectView,
    RowView,
    TracePage,
    TraceQuery,
    TraceView,
)
from waybill.records.batches.limits import SET_ASIDE, is_beyond_limits

if TYPE_CHECKING:
    from waybill.watch.trace import Traced, TraceServices

_AT_A_TIME = 4
_WAIT_SECONDS = 15.0
_FIRST_WAIT = 4
"""How many times longer the first traces wait: they load libraries, and after an installation they compile loops."""
_BUSY = f"{counted(_AT_A_TIME, 'other trace')} are at work: try again in a moment"
_T = TypeVar("_T")
_STREAMS_AT_A_TIME = 4
"""Streams that one query for a message id searches at the same time."""
_SHOWN_BYTES = 16 << 10
_SHOWN_CHARACTERS = 2_000


class PageTracer:
    """Answers queries of the page. It opens the archive and the catalog at the first one."""

    def __init__(self, load_config: Callable[[], Config], *, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._load_config = load_config
        self._wait_seconds = wait_seconds
        self._has_traced = False
        self._running = threading.BoundedSemaphore(_AT_A_TIME)
        self._pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="waybill-trace")

    def __call__(self, query: TraceQuery, links: Links, streams: tuple[str, ...]) -> TracePage:
        """Return the page for a query. The page states what is wrong with the query."""
        if not (query.id or query.topic or query.offset):
            return TracePage(query, streams, (), "", "")
        command = _command(query)
        try:
            return TracePage(query, streams, self._run(lambda: self._find(query, links)), "", command)
        except (WaybillError, LookupError) as error:
            return TracePage(query, streams, (), str(error.args[0] if error.args else error), command)

    def value(self, query: TraceQuery) -> bytes:
        """Return the archived value of a message.

        Raises `LookupError` if the archive has no such message; a `WaybillError` for a query that names no message,
        for a service that does not answer, and while too many traces are at work.
        """
        from waybill.watch.trace import open_services, read_message

        tp, offset = query.place()

        def read() -> Mapping[str, Any] | None:
            config = self._load_config()
            name = query.stream or _stream_of(config, tp.topic)
            with open_services(config) as services:
                return read_message(services.store, config.stream(name), tp, offset)

        message = self._run(read)
        if message is not None and is_beyond_limits(message.get(SET_ASIDE) or ""):
            raise LookupError(f"{tp}@{offset} is not shown: {message[SET_ASIDE]}")
        if message is None or message["value"] is None:
            raise LookupError(f"the archive has no value at {tp}@{offset}")
        return bytes(message["value"])

    def _run(self, work: Callable[[], _T]) -> _T:
        """Run `work` in a separate thread, and return its result. Raises `StoreUnavailable` if it takes too long.

        A thread that takes too long counts as busy until it ends.
        """
        if not self._running.acquire(blocking=False):
            raise StoreUnavailable(_BUSY)

        def run() -> _T:
            try:
                return work()
            finally:
                self._has_traced = True
                self._running.release()

        wait_seconds = self._wait_seconds if self._has_traced else self._wait_seconds * _FIRST_WAIT
        future: Future[_T] = self._pool.submit(run)
        try:
            return future.result(wait_seconds)
        except TimeoutError:
            raise StoreUnavailable(
                f"S3 and the catalog have not answered within {wait_seconds:.0f} seconds: try again, or use the "
                f"command, which waits longer"
            ) from None

    def _find(self, query: TraceQuery, links: Links) -> tuple[TraceView, ...]:
        from waybill.watch.trace import find_places, open_services, trace_message

        config = self._load_config()
        with open_services(config) as services:
            if not query.id:
                tp, offset = query.place()
                name = query.stream or _stream_of(config, tp.topic)
                return (_traced(services, config, name, tp, offset, links, trace_message),)
            names = [query.stream] if query.stream else list(config.streams)
            # Most of a search is waiting for S3 and the catalog.
            with ThreadPoolExecutor(_STREAMS_AT_A_TIME, thread_name_prefix="waybill-trace-id") as pool:
                places = list(pool.map(lambda name: find_places(services, config, name, query.id), names))
            found = [
                _traced(services, config, name, tp, offset, links, trace_message)
                for name, of_stream in zip(names, places, strict=True)
                for tp, offset in of_stream
            ]
        if not found:
            raise LookupError(f"no table has a message with the id {query.id!r}; what is not published has no id yet")
        return tuple(found)


def _stream_of(config: Config, topic: str) -> str:
    matching = [name for name, stream in config.streams.items() if stream.matches(topic)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ConfigError(f"topic {topic!r} belongs to several streams ({', '.join(matching)}): choose one")
    raise ConfigError(f"topic {topic!r} does not belong to any stream")


def _command(query: TraceQuery) -> str:
    import shlex

    stream = shlex.quote(query.stream) if query.stream else "STREAM"
    if query.id:
        return f"waybill trace {stream} --id {shlex.quote(query.id)}"
    return f"waybill trace {stream} {shlex.quote(f'{query.topic}/{query.partition}@{query.offset}')}"


# --- what was found ---------------------------------------------------------------------------------------------------


def _traced(
    services: TraceServices,
    config: Config,
    name: str,
    tp: TopicPartition,
    offset: int,
    links: Links,
    trace: Callable[[TraceServices, Config, str, TopicPartition, int], Traced],
) -> TraceView:
    began = time.monotonic()
    found = trace(services, config, name, tp, offset)
    seconds = time.monotonic() - began
    bytes_href = links.value(name, tp.topic, tp.partition, offset)
    return TraceView(
        stream=name,
        stream_href=links.stream(name),
        place=_link(name, tp, offset, links),
        is_archived=found.message is not None,
        archive_text=_archive_text(found),
        object=_object(found, config.storage.bucket),
        message=None if found.message is None else _message(found.message, bytes_href),
        row=None if found.row is None else _row(found, found.row),
        row_text=_row_text(found),
        unique_text=_unique_text(found),
        first=None if found.first is None else _link(name, *found.first, links),
        duplicates=tuple(_link(name, *place, links) for place in found.duplicates),
        seconds=round(seconds, 3),
        command=f"waybill trace {name} {tp}@{offset}",
    )


def _link(stream: str, tp: TopicPartition, offset: int, links: Links) -> MessagePlace:
    return MessagePlace(f"{tp}@{offset}", links.trace(stream, tp.topic, tp.partition, offset))


def _archive_text(found: Traced) -> str:
    if found.faults:
        return "; ".join(found.faults)
    if found.gap is not None:
        gap = found.gap
        return f"in an accepted gap ({gap.kind}): accepted by {gap.accepted_by}, because: {gap.reason}"
    if found.object is None:
        return "not archived: no backup object has this offset"
    if found.message is None:
        return "the object covers this offset, and has no message there: Kafka compacted it, or it is a control record"
    return "archived"


def _row_text(found: Traced) -> str:
    if found.row is not None:
        return "in quarantine" if found.is_quarantined else "published"
    if found.progress is None or found.offset >= found.progress:
        return "not published yet"
    return "no row: the tables are beyond this offset, and the message has none"


def _unique_text(found: Traced) -> str:
    if not found.has_dedup:
        return "the stream has no dedup"
    if found.first is not None:
        return f"a duplicate of {found.first[0]}@{found.first[1]}"
    if found.is_unique:
        number = counted(len(found.duplicates), "duplicate") if found.duplicates else "no duplicate"
        return f"unique: it was kept, and {number} of it came"
    return "not swept yet" if found.row is not None and not found.is_quarantined else "no row to sweep"


def _object(found: Traced, bucket: str) -> ObjectView | None:
    held = found.object
    if held is None:
        return None
    return ObjectView(
        bucket,
        held.key,
        count_text(held.name.first_offset),
        count_text(held.next_offset - 1),
        bytes_text(held.size_bytes),
        "not known" if held.modified is None else value_text(held.modified),
        f"waybill ls {found.stream} {found.tp}",
    )


def _message(message: Mapping[str, Any], raw_href: str) -> MessageView:
    value, aside = message["value"], message.get(SET_ASIDE) or ""
    text, is_text, is_cut = _bytes_text(value)
    return MessageView(
        timestamp=value_text(message["timestamp"]),
        key=_bytes_text(message["key"])[0],
        value=text,
        is_text=is_text,
        is_cut=is_cut,
        size=aside if is_beyond_limits(aside) else "null: a tombstone" if value is None else bytes_text(len(value)),
        headers=tuple(_headers(message["headers"])),
        raw_href=raw_href,
    )


def _headers(headers: Iterable[Mapping[str, Any]]) -> Iterable[Field]:
    return (Field(str(each["key"]), _bytes_text(each["value"])[0]) for each in headers)


def _bytes_text(data: bytes | None) -> tuple[str, bool, bool]:
    """Return bytes as text or in hexadecimal, whether it is text, and whether it was cut."""
    if data is None:
        return "null", True, False
    shown, is_cut = data[:_SHOWN_BYTES], len(data) > _SHOWN_BYTES
    try:
        return shown.decode(errors="ignore" if is_cut and _is_utf8(shown) else "strict"), True, is_cut
    except UnicodeDecodeError:
        return shown.hex(" "), False, is_cut


def _is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8, except for a character that was cut at their end."""
    return any(_decodes(data[: len(data) - cut]) for cut in range(4))


def _decodes(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _row(found: Traced, row: Mapping[str, Any]) -> RowView:
    fields = tuple(Field(name, value_text(value)) for name, value in row.items())
    return RowView(found.table, found.is_quarantined, fields, str(row["reason"]) if found.is_quarantined else "")


def value_text(value: Any) -> str:
    """Return a column's value as text: lists and structs as JSON, such as headers, with the bytes in them as text."""
    plain = _plain(value)
    is_json = plain is None or isinstance(plain, bool | list | dict)
    text = json.dumps(plain, ensure_ascii=False, default=str) if is_json else str(plain)
    return text[:_SHOWN_CHARACTERS]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _bytes_text(value)[0]
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return value
