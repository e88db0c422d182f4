"""What a stream costs: S3 requests, bytes and CPU time, and what other upload limits would change.

| module | content |
|---|---|
| `cost_report` | the figures of a period, from the stored usage, and what is stored now |
| `prediction` | how many objects and requests an archive needs under other upload limits |

No message is read: the figures come from counters, listings and the metadata of tables.
"""

from waybill.watch.cost.cost_report import CostPeriod, CostReport, RequestKind, kind_of, read_cost
from waybill.watch.cost.prediction import ObjectLimits, Prediction, predict, upload_requests

__all__ = [
    "CostPeriod",
    "CostReport",
    "ObjectLimits",
    "Prediction",
    "RequestKind",
    "kind_of",
    "predict",
    "read_cost",
    "upload_requests",
]
