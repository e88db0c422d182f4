"""The path of one message: the backup object that holds it, its row, and the message that it repeats.

| module | content |
|---|---|
| `message` | the trace of one message, by its offset or by its message id |
"""

from waybill.watch.trace.message import (
    MAX_FOUND,
    Traced,
    TraceServices,
    find_places,
    open_services,
    read_message,
    trace_message,
)

__all__ = ["MAX_FOUND", "TraceServices", "Traced", "find_places", "open_services", "read_message", "trace_message"]
