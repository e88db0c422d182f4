"""Upper bounds of text and bytes in manifest entries: shortened, and raised so that no value is above.

Iceberg's rule (`UnicodeUtil.truncateStringMax` and `BinaryUtil.truncateBinaryMax` of its Java library): cut the value,
raise the last character that can be raised, and drop what follows it; there is no bound if no character can be raised.
PyIceberg's own functions raise U+D7FF to a surrogate, which has no UTF-8 form (apache/iceberg-python#3880).
"""

from __future__ import annotations

from pyiceberg.io.pyarrow import DataFileStatistics, StatsAggregator

_LAST_CHARACTER = 0x10FFFF
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000
_LAST_BYTE = 0xFF


def upper_bound_of_text(value: str, length: int) -> str | None:
    """Return a text of at most `length` characters that is not below `value` in order of code points, or None."""
    if len(value) <= length:
        return value
    for at in range(length - 1, -1, -1):
        code = ord(value[at])
        if code < _LAST_CHARACTER:
            return value[:at] + chr(_AFTER_SURROGATES if code == _BEFORE_SURROGATES else code + 1)
    return None


def upper_bound_of_bytes(value: bytes, length: int) -> bytes | None:
    """Return at most `length` bytes that are not below `value` as unsigned bytes, or None."""
    if len(value) <= length:
        return value
    for at in range(length - 1, -1, -1):
        if value[at] < _LAST_BYTE:
            return value[:at] + bytes([value[at] + 1])
    return None


def shorten_upper_bounds(statistics: DataFileStatistics) -> None:
    """Replace the greatest text or bytes of each column by an upper bound that PyIceberg stores unchanged."""
    for aggregate in statistics.column_aggregates.values():
        _shorten(aggregate)


def _shorten(aggregate: StatsAggregator) -> None:
    greatest, length = aggregate.current_max, aggregate.trunc_length
    if length is None:
        return
    if isinstance(greatest, str):
        aggregate.current_max = upper_bound_of_text(greatest, length)
    elif isinstance(greatest, bytes):
        aggregate.current_max = upper_bound_of_bytes(greatest, length)
