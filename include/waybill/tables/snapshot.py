"""One snapshot, on top of the one that was looked at, or none; and looking again until there is one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from sqlalchemy.exc import OperationalError

from waybill.errors import CatalogUnavailable, CommitConflict
from waybill.tables.catalog import available

__all__ = ["commit_snapshot", "until_committed"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE = 32  # times the first


def until_committed(table: Table, attempt: Callable[[], _T | None], what: str = "commits") -> _T:
    """What `attempt` gives when it has committed, or seen that there is nothing to commit; None: refused, look again.

    `attempt` is called with `table` just refreshed, and longer and longer after each refusal. `what` it is that was
    refused goes into the message.

    Raises `CommitConflict` when others commit faster than this can, `CatalogUnavailable` when the catalog does not
    answer, and what `attempt` raises.
    """
    name = ".".join(table.name())
    for number in range(_ATTEMPTS):
        with available(f"load {name}"):
            table.refresh()
        outcome = attempt()
        if outcome is not None:
            return outcome
        time.sleep(_PAUSE_SECONDS * min(2**number, _LONGEST_PAUSE))
    raise CommitConflict(f"table {name}: {_ATTEMPTS} {what} were refused, each because another came first; run again")


def commit_snapshot(
    table: Table, properties: Mapping[str, str], *, added: Iterable[DataFile] = (), removed: Iterable[DataFile] = ()
) -> bool:
    """Commit a snapshot of these properties that adds and removes files; `removed` must be in `table` as it is loaded.

    False: refused, since the table has moved on from what was loaded, or the outcome is unknown. Either way: refresh
    the table, and look whether it has what was to be committed.

    PyIceberg retries a refused commit by itself, on top of whatever came in between, so that two writers that did the
    same would both succeed. Its retries are off here, in memory: a compaction by Spark keeps its own.
    """
    _switch_retries_off(table)
    removed = list(removed)
    try:
        with table.transaction() as transaction:
            update = transaction.update_snapshot(dict(properties))
            with update.overwrite() if removed else update.fast_append() as snapshot:
                for file in removed:
                    snapshot.delete_data_file(file)
                for file in added:
                    snapshot.append_data_file(file)
    except CommitFailedException as refused:
        log.info("%s: commit refused, looking again: %s", ".".join(table.name()), refused)
        return False
    except (CommitStateUnknownException, OperationalError, CatalogUnavailable) as error:
        # It may have been carried out all the same: the next look at the table tells.
        log.warning("%s: the outcome of a commit is unknown, looking again: %s", ".".join(table.name()), error)
        return False
    return True


def _switch_retries_off(table: Table) -> None:
    properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
