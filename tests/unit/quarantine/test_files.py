"""What S3's faults become: PyIceberg's own errors say neither what was read nor what to do."""

from __future__ import annotations

from typing import Any, cast

import pytest

from waybill.errors import CommitConflict, StoreUnavailable
from waybill.quarantine.files import reachable


class _Named:
    def name(self) -> tuple[str, str]:
        return "analytics", "flights_quarantine_g1"


@pytest.mark.parametrize(
    ("error", "becomes", "says"),
    [
        (FileNotFoundError("x.parquet"), CommitConflict, r"flights_quarantine_g1 is gone \(x\.parquet\).*Run again"),
        (OSError("no answer"), StoreUnavailable, r"analytics\.flights_quarantine_g1 cannot be reached: no answer"),
    ],
)
def test_faults_name_the_table(error: OSError, becomes: type[Exception], says: str) -> None:
    with pytest.raises(becomes, match=says), reachable(cast("Any", _Named())):
        raise error
