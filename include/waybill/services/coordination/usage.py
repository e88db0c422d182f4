"""The usage of processes by day and stream: S3 requests, bytes, CPU seconds, archived messages.

A process that ends adds its tallies to one node, `<root>/usage/<day>/<process>`, by compare-and-swap. All streams of
the process are in it, so a lane that archives many streams makes one write. Processes of one kind share a node, such
as all lanes with the same number.

Nothing is counted twice: a write whose answer was lost is not repeated. If a process is killed, or ZooKeeper does not
answer, its counts are lost. Days are those of UTC, and a process belongs to the day on which it ends. Whoever creates
the first node of a day removes the days that are older than 35.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from waybill.base.errors import WaybillError
from waybill.base.metering import Tally, meter
from waybill.services.coordination.nodes import node_document
from waybill.services.coordination.paths import usage_path
from waybill.services.coordination.session import NodeConflict, ZooKeeperSession

if TYPE_CHECKING:
    from waybill.config.models import Config

logger = logging.getLogger(__name__)

KEPT_DAYS = 35
"""Days whose usage is kept, today included."""
ALL_STREAMS = ""
"""The name under which a process that works for all streams stores its tally, such as the watch."""

_ATTEMPTS = 5
_DOCUMENT = node_document("the figures of the day are then lost")


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """The usage of processes of one kind for one stream on one day."""

    day: date
    process: str
    """The kind of process: `ingest`, `partition`, `dedup`, `maintenance`, `backfill` or `watch`."""
    stream: str
    tally: Tally


class UsageStore:
    """The stored usage of all streams."""

    def __init__(self, session: ZooKeeperSession, root: str, clock: Callable[[], float] = time.time) -> None:
        """`root`: the root of Waybill's znodes. `clock`: seconds since 1970."""
        self._session = session
        self._root = root
        self._clock = clock

    def add(self, process: str, tallies: Mapping[str, Tally]) -> None:
        """Add tallies by stream to those of today. `process`: a kind of process, such as `ingest-0`.

        A missing tally must not fail a run: an error is logged, and the tallies are dropped.
        """
        used = {stream: tally for stream, tally in tallies.items() if tally}
        if not used:
            return
        try:
            self._add(process, used)
        except WaybillError as error:
            logger.warning("the usage of this process is not stored: %s", error)

    def _add(self, process: str, tallies: Mapping[str, Tally]) -> None:
        today = self._today()
        path = usage_path(self._root, today.isoformat(), process)
        for _ in range(_ATTEMPTS):
            node = self._session.get(path)
            known = {} if node is None else _parse(node[0], path)
            for stream, tally in tallies.items():
                known[stream] = Tally.sum((known.get(stream, Tally()), tally))
            streams = {stream: tally.to_fields() for stream, tally in sorted(known.items())}
            content = _DOCUMENT.write({"streams": streams})
            try:
                self._session.write_once(path, content, -1 if node is None else node[1])
            except NodeConflict:
                continue
            if node is None:
                self._remove_days_before(today - timedelta(days=KEPT_DAYS - 1))
            return
        logger.warning("the usage of this process is not stored: other processes changed %s each time", path)

    def days(self) -> list[date]:
        """Return the days that have usage, in order."""
        return sorted(day for day, _ in self._stored_days())

    def read(self, first: date, last: date) -> list[DailyUsage]:
        """Return the usage of all streams from `first` to `last`, by day. Lanes of different numbers are added up.

        Raises `DocumentTooNew`, `DocumentDamaged` or `CoordinationUnavailable`.
        """
        days = [day for day, _ in self._stored_days() if first <= day <= last]
        processes = self._session.children_of_all(usage_path(self._root, day.isoformat()) for day in days)
        nodes = self._session.get_all(f"{parent}/{process}" for parent, each in processes.items() for process in each)
        found: dict[tuple[date, str, str], Tally] = {}
        for path, (content, _) in nodes.items():
            *_, day, process = path.split("/")
            for stream, tally in _parse(content, path).items():
                found.setdefault((date.fromisoformat(day), process.partition("-")[0], stream), Tally()).add(tally)
        return [DailyUsage(*key, tally) for key, tally in sorted(found.items(), key=lambda each: each[0])]

    def today(self) -> list[DailyUsage]:
        """Return the usage of today. Raises as `read` does."""
        today = self._today()
        return self.read(today, today)

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock(), UTC).date()

    def _stored_days(self) -> Iterator[tuple[date, str]]:
        for name in self._session.children(usage_path(self._root)):
            try:
                yield date.fromisoformat(name), name
            except ValueError:
                logger.warning("ZooKeeper node %s is no day; ignored", usage_path(self._root, name))

    def _remove_days_before(self, first: date) -> None:
        for day, name in self._stored_days():
            if day < first:
                for process in self._session.children(usage_path(self._root, name)):
                    self._session.delete(usage_path(self._root, name, process), f"remove the usage of {name}")
                self._session.delete(usage_path(self._root, name), f"remove the usage of {name}")


def store_usage(config: Config, step: str, stream: str) -> None:
    """Add the usage of this process to that of one stream, in a separate session. An error is only logged."""
    tallies = meter.take(step, [stream], "driver")
    try:
        with ZooKeeperSession.of(config) as session:
            UsageStore(session, config.zookeeper.root).add(step, tallies)
    except WaybillError as error:
        logger.warning("the usage of this process is not stored: %s", error)


def _parse(content: bytes, where: str) -> dict[str, Tally]:
    return _DOCUMENT.parse(
        where, content, lambda fields: {stream: Tally.from_fields(each) for stream, each in fields["streams"].items()}
    )
