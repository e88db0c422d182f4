"""Verify that the archive of a stream is complete, and that the tables have each of its messages exactly once.

`verify_stream` reads every backup object of a stream's generation and compares the tables with them. The result is a
`VerifyReport` of figures and faults. Verification changes nothing.

- `archive`: the chains; `gaps`: the accepted gaps in them.
- `rows`: the main table and the quarantine; `files`: the files of a `files` sink.
- `unique`: the tables that dedup sweeps fill; `keys`: the keys in them.
- `effects`: attaches the consequences of a missing object in tables to that fault.
"""

from waybill.watch.verify.stream import verify_stream
from waybill.watch.verify.verify_report import (
    EffectKind,
    FaultEffect,
    FaultKind,
    Listener,
    VerifyFault,
    VerifyFigures,
    VerifyReport,
)

__all__ = [
    "EffectKind",
    "FaultEffect",
    "FaultKind",
    "Listener",
    "VerifyFault",
    "VerifyFigures",
    "VerifyReport",
    "verify_stream",
]
