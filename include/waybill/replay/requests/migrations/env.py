"""Alembic runs this file; the connection is passed in by `migrate`."""

from __future__ import annotations

from alembic import context

from waybill.replay.requests.database import metadata, version

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=version.name,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
