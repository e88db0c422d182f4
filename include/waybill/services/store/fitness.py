"""Check at most once a day whether a store is fit: the newest result of a probe is stored in the bucket.

A process checks the store before it creates an object if absent, which is the protocol's commit point. It reads the
stored result with one request, and uses it until it is a day old. If there is no result, or it is older, or the probe
has become stricter since then, the process probes the store itself. Processes that probe at the same time do not
disturb each other, and each stores the same. A store that fails is refused, and the result is not stored: the next
process probes again.

What this relies on: the clocks of hosts differ by less than a day. A store that changes within the day is not detected.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from waybill.base.documents import Document
from waybill.base.errors import ObjectMissing, WaybillError
from waybill.config import names
from waybill.services.store.calls import BucketCalls
from waybill.services.store.probe import ProbeResult, needed_abilities, probe

logger = logging.getLogger(__name__)

_DOCUMENT = Document(
    "{where} is not the result of a probe that this Waybill reads, probing again: {error}",
    dump=lambda fields: json.dumps(fields, indent=2).encode(),
)
_PROBE = 1
"""The version of the probe. Raise it when a probe finds more than before, or finds it in another way."""
_VALID_FOR = timedelta(days=1)

_known: dict[tuple[str, ...], datetime] = {}
"""Until when this process uses the result, by store, bucket and checksum."""
_asking = threading.Lock()


def _now() -> datetime:
    return datetime.now(UTC)


def ensure_fit(calls: BucketCalls, prefix: str, now: Callable[[], datetime] = _now) -> None:
    """Return if the store is known to be fit; otherwise probe it and store the result.

    Raises `StoreUnfit` if the store lacks an ability; `StoreUnavailable` or `ConfigError` if it does not answer.
    """
    identity = (*calls.identity, calls.checksums)  # the prefix makes no difference to what a store can do
    with _asking:
        if identity in _known and now() < _known[identity]:
            return
        at = _remembered(calls, prefix, now())
        if at is None:
            result = probe_and_remember(calls, prefix, now)
            result.raise_if_unfit()
            at = result.at
        _known[identity] = at + _VALID_FOR


def probe_and_remember(calls: BucketCalls, prefix: str, now: Callable[[], datetime] = _now) -> ProbeResult:
    """Probe the store, and store the result if the store is fit. Raises what `probe` raises."""
    result = probe(calls, prefix, now())
    if result.is_fit:
        logger.info("%s: the store has all %d abilities that Waybill relies on", calls.where, len(result.findings))
        _remember(calls, prefix, result)
    return result


def _remembered(calls: BucketCalls, prefix: str, now: datetime) -> datetime | None:
    """Return when the store was found fit, if the result is still valid."""
    key = names.probe_result_key(prefix)
    try:
        with calls.translate_errors(f"read {key}", key):
            data = calls.client.get_object(Bucket=calls.bucket, Key=key)["Body"].read()
    except ObjectMissing:
        return None

    def made(fields: dict[str, Any]) -> datetime | None:
        at = datetime.fromisoformat(fields["at"])
        covers = fields["probe"] >= _PROBE and needed_abilities(calls.checksums) <= {*fields["abilities"]}
        counts = covers and fields["checksums"] == calls.checksums and abs(now - at) < _VALID_FOR
        return at if counts else None

    return _DOCUMENT.remembered(data, made, lambda: None, key)


def _remember(calls: BucketCalls, prefix: str, result: ProbeResult) -> None:
    key = names.probe_result_key(prefix)
    fields = {
        "probe": _PROBE,
        "at": result.at.isoformat(),
        "checksums": str(calls.checksums),
        "abilities": [str(finding.ability) for finding in result.findings],
    }
    body = _DOCUMENT.write(fields)
    try:
        with calls.translate_errors(f"write {key}", key):
            calls.client.put_object(
                Bucket=calls.bucket,
                Key=key,
                Body=body,
                **calls.checksum_arguments(memoryview(body)),
                **calls.encryption,
            )
    except WaybillError as error:
        # The store is fit nevertheless; each process probes it until the result can be stored.
        logger.warning("%s: the result of the probe could not be stored: %s", key, error)
