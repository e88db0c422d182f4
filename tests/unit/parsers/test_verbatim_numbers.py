"""A column of JSON keeps the digits that the producer wrote; Python's `json` with text for numbers is the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import batch, check, parser_config

from waybill.config.models.columns import Column
from waybill.parsers import build_parser

JSON = parser_config(name="json", event_time={"field": "t", "format": "epoch_ms"})
PARSER = build_parser(JSON, {"doc": Column.model_validate("json")})


def column(value: bytes) -> str | None:
    parsed = PARSER.parse(batch(b'{"t": 1, "doc": ' + value + b"}"))
    check(parsed, 1)
    assert parsed.error.to_pylist() == [None]
    text: str | None = parsed.columns["doc"].to_pylist()[0]
    return text


@pytest.mark.parametrize(
    "number", ["12345678901234567890123", "1.10", "-0.0", "1E+300", "0.1000000000000000055511151231257827", "1e-400"]
)
def test_digits_stay_as_they_were_written(number: str) -> None:
    assert column(number.encode()) == number
    assert column(f'{{"id": {number}, "more": [{number}]}}'.encode()) == f'{{"id":{number},"more":[{number}]}}'


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?(e[+-]?[0-9]{1,2})?", fullmatch=True).filter(
    lambda text: text != "-0"  # a whole number without a fraction has no sign at 0
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)


def documents(numbers: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return JSON texts."""
    leaves = numbers | TEXTS.map(json.dumps) | st.sampled_from(["true", "null"])
    return st.recursive(
        leaves,
        lambda below: (
            st.lists(below, max_size=3).map(lambda each: "[" + ", ".join(each) + "]")
            | st.dictionaries(TEXTS.map(json.dumps), below, max_size=3).map(
                lambda each: "{" + ",".join(f"{key}: {value}" for key, value in each.items()) + "}"
            )
        ),
        max_leaves=8,
    )


def exactly(text: str | bytes) -> Any:
    return json.loads(text, parse_int=lambda digits: ("number", digits), parse_float=lambda digits: ("number", digits))


@given(documents(NUMBERS))
def test_any_document_has_the_producers_numbers(text: str) -> None:
    found = column(text.encode())
    if text != "null":
        assert found is not None
        assert exactly(found) == exactly(text)
