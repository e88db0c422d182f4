"""Cron expressions that are accepted without croniter are ones that croniter accepts."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models.expressions import IsSchedule, surely_matches_a_time


def fields(high: int) -> st.SearchStrategy[str]:
    number = st.integers(0, high + 3)
    return st.just("*") | number.map(str) | number.map("{:02d}".format) | number.map("*/{}".format)


@given(st.tuples(fields(59), fields(23), fields(31), fields(12), fields(7)).map(" ".join))
def test_what_is_accepted_without_croniter_matches_a_time(expression: str) -> None:
    if surely_matches_a_time(expression):
        assert croniter(expression, datetime(2026, 1, 1, tzinfo=UTC)).get_next() > 0


@pytest.mark.parametrize("expression", ["*/0 * * * *", "0 0 30 2 *", "60 * * * *", "0 24 * * *", "0 0 0 * *"])
def test_expression_that_matches_no_time_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="cron expression"):
        IsSchedule().parse(expression)


def test_plain_expressions_do_not_import_croniter() -> None:
    expressions = ["0 * * * *", "5 * * * *", "*/10 * * * *", "30 3 * * *", "0 4 1 * 6"]
    code = f"""
import sys
from waybill.config.models.expressions import IsSchedule
assert [IsSchedule().parse(each) for each in {expressions}] == {expressions}
assert "croniter" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
