"""The ledger: for each topic-partition, a balance from the offsets of Kafka's log to the rows of the unique table.

`read_ledger` adds up figures that exist for other reasons, and reads no message: the counts that ingest stores with the
committed offset, the listings of the chains, accepted gaps, and the topic-partition of each row in the tables. `verify`
reads all bytes instead, and finds the offsets that the ledger can only bound.

- `balance`: the terms and the equations; `read`: where the terms come from.
- `lines`: the line of one chain; `periods`: chains divided into days.
- `archived`: the side of the archive; `rows`: the side of the tables.
- `results`: ledger results, which are stored for the watch.
- `signature`: signed ledgers.
"""

from waybill.watch.ledger.balance import Imbalance, Ledger, Line, LogTerms, MessageTerms, RowTerms
from waybill.watch.ledger.periods import LedgerPeriod, PeriodLedger, Periods
from waybill.watch.ledger.read import ReadLogEnds, read_ledger, read_ledger_by_period
from waybill.watch.ledger.results import LedgerResult, record_ledger

__all__ = [
    "Imbalance",
    "Ledger",
    "LedgerPeriod",
    "LedgerResult",
    "Line",
    "LogTerms",
    "MessageTerms",
    "PeriodLedger",
    "Periods",
    "ReadLogEnds",
    "RowTerms",
    "read_ledger",
    "read_ledger_by_period",
    "record_ledger",
]
