"""Is the archive whole, and is each of its offsets in the tables exactly once?

`verify_stream` reads every backup object of a stream's generation, and then holds the table and its quarantine against
what it read. What it finds is a `Report` of figures and faults; nothing is changed.
"""

from waybill.verify.report import Fault, FaultKind, Figures, Listener, Report
from waybill.verify.stream import verify_stream

__all__ = ["Fault", "FaultKind", "Figures", "Listener", "Report", "verify_stream"]
