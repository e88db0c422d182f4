"""What two pictures of an earlier version's store may not differ in, and what they may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_OF_THE_CLOCK = frozenset(
    {"accepted_at", "at", "claimed_at", "committed_at", "modified", "stopped_at", "stopped_at_ms", "swept_at"}
    | {"quarantined_at", "first_quarantined_at", "last_quarantined_at", "since"}
    | {"checked_at", "started_at", "finished_at"}
)
"""Fields that tell when something was done."""
_OF_CHANCE = frozenset(
    {"bytes", "bytes_per_key", "object_bytes", "size_bytes", "sha256", "swept_snapshot", "topic_id", "topic-id"}
    | {"index-object", "planned-at", "run", "snapshot", "waybill-version"}
)
"""Fields that depend on random numbers, on how a producer cuts its batches, on libraries, or on the release."""
_OLD_TABLE_NAME = re.compile(r"(earlier\.\w+)_g\d+")
"""A table's name in the earlier version, which held the generation. The keys of files still hold it."""
_LATER_CHECKS = frozenset({"parser_failed"})
"""Checks of each audit that the earlier versions did not make."""
AS_IT_LAY = frozenset({"modified", "since"})
"""What may differ in the picture of a store that was only brought back."""
CARRIED_ON = _OF_THE_CLOCK | _OF_CHANCE | {"object_messages"}  # the earlier version counted a first batch as a whole
"""What may differ in the picture of a store that two versions have carried on."""


def differences(expected: Any, found: Any, *, but: frozenset[str] = frozenset(), where: str = "") -> Iterator[str]:
    """Yield each difference of `found` from `expected`, apart from additional fields and the fields named in `but`."""
    if isinstance(expected, dict) and isinstance(found, dict):
        found = {_under_one_name(name): value for name, value in found.items()}
        for name, value in expected.items():
            name = _under_one_name(name)
            if name not in found:
                yield f"{where}/{name}: is missing"
            elif name == "notes":  # sentences for people, whose words may change; their number may not
                yield from differences(len(value), len(found[name]), where=f"{where}/{name}")
            elif name not in but:
                yield from differences(value, found[name], but=but, where=f"{where}/{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found := _known(found)):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, but=but, where=f"{where}/{number}")
    elif _under_one_name(expected) != _under_one_name(found):
        yield f"{where}: {expected!r} was expected, and {found!r} found"


def _under_one_name(value: Any) -> Any:
    """Return a table's name without the generation that the earlier version put there; other values as they are."""
    found = _OLD_TABLE_NAME.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else value


def _known(found: list[Any]) -> list[Any]:
    """Return a list without the results of checks that the earlier versions did not make."""
    return [each for each in found if not isinstance(each, dict) or each.get("expectation") not in _LATER_CHECKS]
