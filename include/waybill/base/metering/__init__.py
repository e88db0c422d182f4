"""Metering: S3 requests, bytes and CPU time of this process, by the stream that it works for.

| module | content |
|---|---|
| `tally` | the figures, with their sums and their division |
| `meter` | the meter of this process |

The S3 clients count their requests here. A process that ends stores what it has counted
(`waybill.services.coordination.usage`).
"""

from waybill.base.metering.meter import Meter, current_account, meter, working_for
from waybill.base.metering.tally import Tally, divided

__all__ = ["Meter", "Tally", "current_account", "divided", "meter", "working_for"]
