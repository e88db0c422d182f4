"""Kafka's record-batch format v2: framing and checks, decode to Arrow, encode.

Framing is exported here. `waybill.records.decode` (numba, pyarrow) and `waybill.records.encode` are imported by those who use
them: an ingest lane needs neither, and starts every minute.
"""

from waybill.records.framing import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    ControlType,
    Frame,
    Frames,
    TimestampType,
    check_crc,
    control_type,
    empty_batch,
    frames,
    is_abort_marker,
    read_frames,
    read_header,
)

__all__ = [
    "HEADER_BYTES",
    "BatchHeader",
    "Codec",
    "ControlType",
    "Frame",
    "Frames",
    "TimestampType",
    "check_crc",
    "control_type",
    "empty_batch",
    "frames",
    "is_abort_marker",
    "read_frames",
    "read_header",
]
