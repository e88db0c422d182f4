"""Files that a retry has staged and that no snapshot references yet: no orphans."""

from __future__ import annotations

from waybill.config import Stream
from waybill.names import retry_key
from waybill.quarantine.record import find_retry
from waybill.quarantine.view import retries_of
from waybill.store import Store
from waybill.tables import StreamTables

__all__ = ["uncommitted_files"]


def uncommitted_files(store: Store, name: str, stream: Stream, tables: StreamTables) -> list[str]:
    """The data files of the retry of stream `name` that the table has not committed, if there is one.

    There is one at most: the next number is taken only when the last one is done.
    """
    main, quarantine = retries_of(tables)
    number = max(main, quarantine)
    uuid = str(tables.main.metadata.table_uuid)
    found = [
        find_retry(store, retry_key(store.prefix, name, stream.generation, uuid, n)) for n in range(main, number + 1)
    ]
    return [path for retry in found if retry is not None for path in retry.files]
