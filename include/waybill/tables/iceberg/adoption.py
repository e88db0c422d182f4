"""Load a stream's table by its name, also if an earlier version of Waybill created it with a generation in the name.

Until all generations of a stream shared one table, generation 1 of `analytics.flights` was `analytics.flights_g1`. The
catalog renames such a table: its uuid, its data files and its history stay, and so do the plans and the key index that
are named after its uuid.
"""

from __future__ import annotations

import logging

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table

from waybill.base.errors import ConfigError
from waybill.config.names import name_with_generation

logger = logging.getLogger(__name__)


def find_table(catalog: Catalog, name: str, generation: int) -> Table | None:
    """Return the table `name`, or the generation's table of an earlier version of Waybill; None if there is neither."""
    for each in (name, name_with_generation(name, generation)):
        try:
            return catalog.load_table(each)
        except NoSuchTableError:
            continue
    return None


def adopt_table(catalog: Catalog, name: str, generation: int) -> Table | None:
    """Return the table `name`; rename a table of an earlier version of Waybill to it. None if there is neither.

    Several processes may call this at the same time. Raises `ConfigError` if the catalog cannot rename tables.
    """
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        earlier = name_with_generation(name, generation)
    try:
        catalog.rename_table(earlier, name)
    except NotImplementedError as error:
        raise ConfigError(
            f"the catalog cannot rename the table {earlier} to {name}, the name that all generations share: rename it "
            f"with the catalog's own tools, and run again"
        ) from error
    except (
        NoSuchNamespaceError,
        NoSuchTableError,
        TableAlreadyExistsError,
    ):  # there is no earlier table, or a rival has renamed it
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            return None
    logger.info("renamed the table %s to %s", earlier, name)
    return catalog.load_table(name)
