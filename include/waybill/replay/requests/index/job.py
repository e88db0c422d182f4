"""Extend the replay index of all chains of a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from waybill.base.errors import WaybillError, expected
from waybill.config.connections import Connection, find_connection
from waybill.config.models import Config
from waybill.config.names import Extension, TopicPartition
from waybill.replay.requests.index.build import ReplayIndexFigures, extend_index
from waybill.services.coordination import Coordinator
from waybill.services.store import Store

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StreamIndexed:
    """What a run added to the index of a stream."""

    figures: ReplayIndexFigures = field(default_factory=ReplayIndexFigures)
    errors: dict[TopicPartition, WaybillError] = field(default_factory=dict)
    """The topic-partitions whose index ends before an object that cannot be read."""
    failure: WaybillError | None = None
    """Why the whole stream could not be indexed."""
    is_indexable: bool = True
    """Whether the stream has a replay index: only the format `kafka` keeps the timestamps that it needs."""

    @property
    def all_errors(self) -> list[WaybillError]:
        """Return all errors, for a person."""
        return [*self.errors.values(), *([] if self.failure is None else [self.failure])]


def index_all(
    config: Config,
    names: Iterable[str],
    *,
    should_stop: Callable[[], bool] = lambda: False,
    find: Callable[[str], Connection] = find_connection,
) -> dict[str, StreamIndexed]:
    """Index streams one after the other. An error of one stream is in its result, and the others are still indexed.

    Raises the retriable `StoreUnavailable` or `CoordinationUnavailable`: they concern all streams.
    """
    done: dict[str, StreamIndexed] = {}
    for name in names:
        try:
            done[name] = index_stream(config, name, should_stop=should_stop, find=find)
        except Exception as error:
            failure = expected(f"the replay index of stream {name}", error)
            if failure.retriable:
                raise
            logger.exception("stream %s cannot be indexed: %s", name, failure)
            done[name] = StreamIndexed(failure=failure)
    return done


def index_stream(
    config: Config,
    stream_name: str,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    find: Callable[[str], Connection] = find_connection,
) -> StreamIndexed:
    """Index the objects that were committed since the last run.

    After an error of one chain, the others are still indexed.

    Raises `ConfigError`, `StoreUnavailable` or `CoordinationUnavailable`.
    """
    stream, done = config.stream(stream_name), StreamIndexed()
    if stream.format.extension is not Extension.KAFKA:
        done.is_indexable = False
        return done
    with Store.of(config.storage, find) as store, Coordinator.of(config, stream_name, find) as coordinator:
        for tp, committed in sorted(coordinator.list_committed().items()):
            if should_stop():
                break
            try:
                added = extend_index(store, stream.generation, tp, committed.committed_offset, should_stop=should_stop)
            except Exception as error:
                failure = expected(f"the replay index of {tp}", error)
                if failure.retriable:
                    raise
                logger.error("%s: the replay index cannot be extended: %s", tp, failure, exc_info=failure is not error)
                done.errors[tp] = failure
                continue
            total = done.figures
            total.objects += added.objects
            total.messages += added.messages
            total.archived_bytes += added.archived_bytes
            total.index_bytes += added.index_bytes
    return done
