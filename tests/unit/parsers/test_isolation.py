"""A built-in parser that raises: the messages that cause it go to quarantine, and all others to the table."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import parser_config

from waybill.base.errors import RegistryUnavailable
from waybill.parsers import Parsed, Reason, build_parser
from waybill.parsers.build import IsolatingParser
from waybill.parsers.protocol import EVENT_TIME_TYPE, MAX_REASON_CHARACTERS, bounded_reasons, reason


class Fragile:
    """A parser that raises at some values, and counts what it is given."""

    name = "fragile"

    def __init__(self, bad: AbstractSet[int], error: Exception) -> None:
        self.bad, self.error = bad, error
        self.parsed = 0

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        self.parsed += messages.num_rows
        values = [int(value) for value in messages.column("value").to_pylist()]
        if self.bad & set(values):
            raise type(self.error)(*self.error.args)  # one error that is raised again and again keeps all its frames
        n = len(values)
        return Parsed(pa.array(values, EVENT_TIME_TYPE), pa.nulls(n, pa.string()), pa.nulls(n, pa.string()))


def batch(n: int) -> pa.RecordBatch:
    values = [b"%d" % number for number in range(n)]
    return pa.record_batch({"offset": pa.array(range(n), pa.int64()), "value": pa.array(values, pa.binary())})


@pytest.mark.parametrize("error", [AttributeError("encode"), RecursionError(), MemoryError(), ValueError("x" * 10**4)])
@given(n=st.integers(1, 60), data=st.data())
def test_each_failing_message_has_a_reason_and_the_others_are_parsed(
    error: Exception, n: int, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, n - 1), max_size=n))
    parser = Fragile(bad, error)
    parsed = IsolatingParser(parser, {}).parse(batch(n))
    failed = {row for row, text in enumerate(parsed.error.to_pylist()) if text is not None}
    assert failed == bad
    assert all(
        text.startswith(f"parser_failed: {type(error).__name__} at parsers/build.py:")
        for text in parsed.error.drop_null().to_pylist()
    )
    assert all(len(text) <= MAX_REASON_CHARACTERS for text in parsed.error.drop_null().to_pylist())
    times = parsed.event_time.cast(pa.int64()).to_pylist()
    assert [time for row, time in enumerate(times) if row not in bad] == sorted(set(range(n)) - bad)
    # A batch of odd length has a larger half, which adds at most one message for each half on the way.
    assert parser.parsed <= n + len(bad) * (2 * n + 2 * n.bit_length()), "the search costs a multiple of the batch"


def test_an_error_of_waybill_concerns_all_messages() -> None:
    class Refusing(Fragile):
        def parse(self, messages: pa.RecordBatch) -> Parsed:  # noqa: ARG002
            raise RegistryUnavailable("http://registry", "503", "connection 'registry'")

    with pytest.raises(RegistryUnavailable):
        IsolatingParser(Refusing(set(), ValueError()), {}).parse(batch(4))


def test_built_in_parsers_are_isolated_with_the_types_of_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = build_parser(parser_config(name="json", event_time={"field": "at", "format": "epoch_ms"}))
    assert isinstance(parser, IsolatingParser)
    assert parser.name == "json"


@pytest.mark.parametrize("detail", ["9" * 1_000_090, "\ud83d", "ü" * 5000])
def test_reasons_are_bounded_and_have_a_utf8_form(detail: str) -> None:
    text = reason(Reason.COLUMN_WRONG_TYPE, detail)
    assert len(text) <= MAX_REASON_CHARACTERS
    assert text.encode().decode() == text
    assert text.startswith("column_wrong_type: ")


def test_reasons_of_a_users_class_are_bounded() -> None:
    found = bounded_reasons(pa.array([None, "short", "x" * 10**6]))
    assert found.to_pylist()[:2] == [None, "short"]
    assert len(found[2].as_py()) == MAX_REASON_CHARACTERS
