"""Alembic's migrations of the database of the replay requests. `waybill replay migrate` runs them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError

from waybill.base.errors import ConfigError
from waybill.replay.requests.database import REVISION, Database, revision_of

__all__ = ["alembic_config", "migrate"]


def alembic_config() -> Config:
    """Return Alembic's configuration, without a database."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def migrate(database: Database) -> tuple[str | None, str]:
    """Create the tables, or migrate them to the newest revision. Return the previous and the new revision.

    Requests that are open stay open. Several processes can migrate at the same time, but not several threads of one
    process: Alembic keeps the current migration in a global variable.

    Raises `ConfigError` if the tables belong to a newer version of Waybill, and `ReplayUnavailable`.
    """
    before = database.read(revision_of)
    if before is not None and before > REVISION:
        database.check_revision()
    if before == REVISION:
        return before, REVISION
    config = alembic_config()
    try:
        with database.engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as error:
        # Two processes that migrate at the same time: the second one finds the tables of the first.
        if database.read(revision_of) != REVISION:
            raise ConfigError(
                f"the database of the replay requests ({database.shown}) cannot be migrated: {error.orig}. Its user "
                f"must be allowed to create tables"
            ) from error
    return before, REVISION
