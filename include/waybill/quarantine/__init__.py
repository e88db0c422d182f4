"""Quarantine: what of it counts, and the retry that moves messages to the table exactly once.

`view` reads its rows, `summary` counts them, `retry` parses them again and moves those that can be read now, `dropping`
is a retry's last step. docs/protocol.md, "Retry of the quarantine", says why nothing is lost or repeated.
"""

from waybill.quarantine.choice import Choice, Target
from waybill.quarantine.offset_sets import Offsets
from waybill.quarantine.report import RetryReport
from waybill.quarantine.retry import finish_retries, retry_quarantine
from waybill.quarantine.view import Group, View, moved_offsets, open_view, summarize

__all__ = [
    "Choice",
    "Group",
    "Offsets",
    "RetryReport",
    "Target",
    "View",
    "finish_retries",
    "moved_offsets",
    "open_view",
    "retry_quarantine",
    "summarize",
]
