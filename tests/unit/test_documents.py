"""The check of a stored document's version."""

from __future__ import annotations

import pytest

from waybill.base.documents import read_document
from waybill.base.errors import DocumentTooNew


@pytest.mark.parametrize("data", [b'{"v":1,"a":7}', '{"v":2,"a":7}'])
def test_read_document_returns_the_fields(data: bytes | str) -> None:
    assert read_document(data, 2, "node /x")["a"] == 7


def test_read_document_refuses_a_newer_version_with_the_remedy() -> None:
    message = r"node /x was written by a newer Waybill \(document version 3; this one reads up to 2\)\. Remove it"
    with pytest.raises(DocumentTooNew, match=message):
        read_document(b'{"v":3}', 2, "node /x", remedy="Remove it")


def test_read_document_refuses_a_version_below_the_oldest() -> None:
    with pytest.raises(ValueError, match="document version 1 is older than 2"):
        read_document(b'{"v":1}', 3, "node /x", oldest=2)


@pytest.mark.parametrize("data", [b"", b"17", b"[]", b"{}", b'{"v":null}', b'{"v":"x"}', b"\xff"])
def test_read_document_raises_a_parsing_error_for_other_bytes(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_document(data, 1, "node /x")


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"v": 1, "a": ' + "[" * 100_000, '{"v": 1e999}', '{"v": NaN}', '{"v": 1, "offset": 1e999}'],
)
def test_a_document_that_python_cannot_read_is_damaged_as_any_other(content: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_document(content, 1, "here")
