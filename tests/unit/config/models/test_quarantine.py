"""The section `quarantine:` of a stream: the share of quarantined messages that raises an alert."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import ValidationError

from waybill.config.models.partition_by import QuarantineAlert


@pytest.mark.parametrize(
    ("written", "share", "as_written"),
    [("1%", "0.01", "1%"), ("0.5 %", "0.005", "0.5%"), (0.015, "0.015", "1.5%"), (0, "0", "0%"), ("100%", "1", "100%")],
)
def test_shares_are_read_and_written(written: object, share: str, as_written: str) -> None:
    alert = QuarantineAlert.model_validate({"max_rate": written})
    assert alert.max_rate == Decimal(share)
    document = alert.model_dump(mode="json")
    assert document["max_rate"] == as_written
    assert QuarantineAlert.model_validate(document) == alert


@pytest.mark.parametrize("written", [1, 1.0, 5, "1", "101%", "-1%", -0.1, True, None, float("nan"), "one"])
def test_an_ambiguous_share_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match=r"must be a share: 1% or 0\.01 \(1% is not 1"):
        QuarantineAlert.model_validate({"max_rate": written})
