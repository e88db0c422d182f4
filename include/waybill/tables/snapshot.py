"""One snapshot, on top of the one that was looked at, or none."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from sqlalchemy.exc import OperationalError

from waybill.errors import CatalogUnavailable

__all__ = ["commit_snapshot"]

log = logging.getLogger(__name__)


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
