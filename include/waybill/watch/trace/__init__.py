"""One message on its way: the backup object that holds it, its row, and what it repeats.

| module | content |
|---|---|
| `message` | what is known of one message, by its place or by its message id |
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
