"""Kafka's record batches, format v2: framing and checks, decoding to Arrow, encoding, compression.

- `framing`: where each batch starts and ends, its header and its CRC. Exported here.
- `decode`: from batches to Arrow, with compiled loops (numba, pyarrow).
- `encode`: from messages to batches, for tests, benchmarks and restores.
- `compression`: Kafka's four codecs, and recompression of uncompressed batches (cramjam).

Import the last three where they are used: an ingest lane of the format `kafka` needs neither numba nor pyarrow, and a
lane starts every minute.
"""

from waybill.records.batches.framing import (
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
