"""The tables of all streams: when their state is read, and the findings about it.

Loading the tables of a stream takes some 30 ms of CPU, importing Iceberg more than a second, and the limits of promises
about tables are hours. So the state of all tables is read every five minutes, and the state of one stream's tables
whenever a promise about them would be broken, or was broken at the last watch. In between, the stored state is compared
with the current time and offsets.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import orjson

from waybill.base.documents import read_document
from waybill.base.errors import DocumentTooNew, WaybillError, expected
from waybill.config.models import Config
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import READABLE, Finding, Verdict
from waybill.watch.promises.log_figures import Logs, without_verdicts
from waybill.watch.promises.promise_findings import of_promise, unknown
from waybill.watch.promises.samples import Samples
from waybill.watch.promises.services import WatchServices, reachable
from waybill.watch.promises.table_figures import TableState, table_promises

if TYPE_CHECKING:
    from waybill.tables.staging.services import StagingServices

logger = logging.getLogger(__name__)

_THREADS = 8
"""The number of streams whose tables are loaded in parallel, since loading mostly waits for the catalog and S3."""
_READ_AGAIN_MINUTES = 5
_MINUTE_MS = 60_000
_VERSION = 2
_TABLE_PROMISES = (
    PromiseName.TABLE_LAG,
    PromiseName.COMPLETE_BY,
    PromiseName.RUN_DURATION,
    PromiseName.QUARANTINE_SHARE,
    PromiseName.PARSER_FAILED,
    PromiseName.DUPLICATE_SHARE,
    PromiseName.LATE_SHARE,
    PromiseName.DEDUP_WINDOW,
    PromiseName.HELD_PUBLICATION,
    PromiseName.LEDGER_BALANCE,
)


def table_findings(
    config: Config,
    services: WatchServices,
    names: Sequence[str],
    logs: Logs | None,
    samples: Samples,
    states: dict[str, TableState],
    now_ms: int,
    failed: Mapping[str, Failures],
) -> list[Finding]:
    """Return the findings about the tables of all streams, and bring `states` up to date."""
    services.findings.setdefault("the catalog", reachable("the catalog", Verdict.UNKNOWN))
    if logs is None or services.store is None:
        return [finding for name in names for finding in unknown(config, name, (*_TABLE_PROMISES, READABLE))]

    found: dict[str, list[Finding]] = {}
    due = []
    for name in names:
        ignored = Failures()
        if name in states and not _is_due(states[name], now_ms):
            found[name] = _figures(config, name, states[name], logs, samples, now_ms, ignored)
        # A state that raises an exception is read again. If the exception is raised again, it is reported.
        if ignored.texts or _is_broken_or_missing(found.get(name)):
            due.append(name)
    found |= {name: unknown(config, name, (*_TABLE_PROMISES, READABLE)) for name in due}
    if due:
        from waybill.tables.staging.services import services_of

        del services.findings["the catalog"]
        away: WaybillError | None = None
        with services.needed("the catalog"), services_of(config, None) as opened:
            for name, read in _read_all(config, due, opened, now_ms):
                if isinstance(read, TableState):
                    states[name] = read
                    found[name] = _figures(config, name, read, logs, samples, now_ms, failed[name])
                elif read.retriable:
                    away = away or read
                else:
                    states.pop(name, None)
                    found[name] = [_readable(name, str(read)), *unknown(config, name, _TABLE_PROMISES)]
            if away is not None:  # the other streams have been read nevertheless
                raise away
    return [finding for name in names for finding in found[name]]


def _figures(
    config: Config, name: str, state: TableState, logs: Logs, samples: Samples, now_ms: int, failures: Failures
) -> list[Finding]:
    """Return the findings about the tables of a stream whose state is known."""
    found = [_readable(name)]
    for promise, read in table_promises(name, config.stream(name), state, logs, samples, now_ms).items():
        found += of_promise(config, name, promise, read, failures)
    return without_verdicts(found, logs.unread.get(name, ""))


def _is_broken_or_missing(found: Sequence[Finding] | None) -> bool:
    return found is None or any(each.verdict is Verdict.BROKEN for each in found)


def _is_due(state: TableState, now_ms: int) -> bool:
    """Return whether to read the state again: in the same minute for all streams, so that other watches import less."""
    minute = now_ms // _MINUTE_MS
    return minute % _READ_AGAIN_MINUTES == 0 or minute - state.read_ms // _MINUTE_MS >= _READ_AGAIN_MINUTES


def _read_all(
    config: Config, names: Sequence[str], services: StagingServices, now_ms: int
) -> list[tuple[str, TableState | WaybillError]]:
    """Return the state of the tables of each stream, or why it cannot be read."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(zip(names, pool.map(lambda name: _read(config, name, services, now_ms), names), strict=True))


def _read(config: Config, name: str, services: StagingServices, now_ms: int) -> TableState | WaybillError:
    """Return the state of a stream's tables, or why it cannot be read."""
    from waybill.watch.promises.table_reader import read_table_state

    try:
        return read_table_state(name, config.stream(name), services, now_ms)
    except Exception as error:
        failure = expected(f"the tables of stream {name}", error)
        if failure is not error:
            logger.exception("the tables of stream %s cannot be read", name)
        return failure


def parse_states(content: bytes | None) -> dict[str, TableState]:
    """Return the stored table states; none if they cannot be parsed: then all tables are read again."""
    if content is None:
        return {}
    try:
        fields = read_document(gzip.decompress(content), _VERSION, "the watch's table states")
        return {name: TableState.parse(document) for name, document in fields["states"].items()}
    except (DocumentTooNew, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        logger.warning("all tables are read again: the stored states cannot be read: %s", error)
        return {}


def states_content(states: Mapping[str, TableState]) -> bytes:
    """Return the document of table states for the next watch."""
    documents = {name: state.document() for name, state in states.items()}
    return gzip.compress(orjson.dumps({"v": _VERSION, "states": documents}), compresslevel=1)


def _readable(name: str, error: str = "") -> Finding:
    return Finding(
        stream=name,
        promise=READABLE,
        verdict=Verdict.BROKEN if error else Verdict.KEPT,
        severity=PromiseSeverity.CRITICAL,
        figure="cannot be read" if error else "can be read",
        limit="can be read",
        detail=error,
        command=f"waybill verify {name}",
    )
