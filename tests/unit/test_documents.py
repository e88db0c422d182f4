"""The check of a stored document's version, and dataclasses that are stored by their types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, ClassVar

import pytest

from waybill.base.documents import As, Document, Stored
from waybill.base.errors import DocumentDamaged, DocumentTooNew


@pytest.mark.parametrize("data", [b'{"v":1,"a":7}', '{"v":2,"a":7}'])
def test_a_document_is_read_as_its_fields(data: bytes | str) -> None:
    assert Document(version=2).read(data, "node /x")["a"] == 7


def test_a_newer_version_is_refused_with_the_remedy() -> None:
    message = r"node /x was written by a newer Waybill \(document version 3; this one reads up to 2\)\. Remove it"
    with pytest.raises(DocumentTooNew, match=message):
        Document(version=2, remedy="Remove it").read(b'{"v":3}', "node /x")


def test_a_version_below_the_oldest_is_refused() -> None:
    with pytest.raises(ValueError, match="document version 1 is older than 2"):
        Document(version=3, oldest=2).read(b'{"v":1}', "node /x")


@pytest.mark.parametrize("data", [b"", b"17", b"[]", b"{}", b'{"v":null}', b'{"v":"x"}', b"\xff"])
def test_other_bytes_raise_a_parsing_error(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Document().read(data, "node /x")


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"v": 1, "a": ' + "[" * 100_000, '{"v": 1e999}', '{"v": NaN}', '{"v": 1, "offset": 1e999}'],
)
def test_a_document_that_python_cannot_read_is_damaged_as_any_other(content: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Document().read(content, "here")


# --- dataclasses that are stored --------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part(Stored):
    DOCUMENT: ClassVar = Document("part of {where} ({error}): mend it", name="part of {where}", version=2)

    number: int


@dataclass(frozen=True, slots=True)
class Whole(Stored):
    DOCUMENT: ClassVar = Document("{where} ({kind}: {error}): restore it", remedy="Use the other one")

    key: Annotated[str, As(is_place=True)]
    at: datetime
    colours: tuple[Colour, ...]
    count: Annotated[int, As("n")]
    size: Annotated[int | None, As("", lambda text: int(text, 16), hex)] = None
    part: Annotated[Part | None, As(is_left_out=True)] = None
    added: Annotated[str, As(may_lack=True)] = "of an earlier version"


AT = datetime(2026, 1, 31, tzinfo=UTC)
WHOLE = Whole("k", AT, (Colour.RED,), 5, 255, Part(7), "now")
TEXT = (
    b'{"v":1,"at":"2026-01-31T00:00:00+00:00","colours":["red"],"n":5,"size":"0xff","part":{"v":2,"number":7},'
    b'"added":"now"}'
)


def test_fields_are_stored_in_their_order_by_their_types() -> None:
    assert WHOLE.to_json() == TEXT
    assert Whole.from_json("k", TEXT) == WHOLE


def test_a_field_that_is_none_is_null_or_left_out() -> None:
    empty = Whole("k", AT, (), 5)
    assert b'"size":null' in empty.to_json()
    assert b'"part"' not in empty.to_json()
    assert Whole.from_json("k", empty.to_json()) == empty


def test_a_key_that_may_be_missing_has_its_default_and_unknown_keys_are_left_out() -> None:
    text = TEXT.replace(b'"added"', b'"of_a_newer_version"')
    assert Whole.from_json("k", text).added == "of an earlier version"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"n":5', b'"m":5', r"^k \(KeyError: 'n'\): restore it$"),
        (b'"red"', b'"blue"', r"^k \(ValueError: 'blue' is not a valid Colour\): restore it$"),
        (b'"0xff"', b"17", r"^k \(TypeError: .*\): restore it$"),
        (b'{"v":2,"number":7}', b"null", r"^part of k \(.*\): mend it$"),
        (b'{"v":2,"number":7}', b'{"v":2}', r"^part of k \('number'\): mend it$"),
    ],
)
def test_a_damaged_document_is_named_with_its_remedy(old: bytes, new: bytes, message: str) -> None:
    assert old in TEXT
    with pytest.raises(DocumentDamaged, match=message):
        Whole.from_json("k", TEXT.replace(old, new))


def test_a_newer_version_is_refused_with_the_remedy_of_its_kind() -> None:
    with pytest.raises(DocumentTooNew, match=r"^k was written by a newer Waybill .*\. Use the other one$"):
        Whole.from_json("k", TEXT.replace(b'"v":1', b'"v":2'))
    with pytest.raises(DocumentTooNew, match=r"^part of k was written by a newer Waybill .document version 3"):
        Whole.from_json("k", TEXT.replace(b'"v":2', b'"v":3'))


def test_plain_values_are_taken_as_they_are_or_converted() -> None:
    assert Part.from_json("k", b'{"v":2,"number":"7"}') == Part("7")  # type: ignore[arg-type]

    @dataclass(frozen=True, slots=True)
    class Converted(Stored):
        DOCUMENT: ClassVar = Document("{where}", converts=True)

        number: int
        text: str

    assert Converted.from_json("k", b'{"v":1,"number":"7","text":8}') == Converted(7, "8")
