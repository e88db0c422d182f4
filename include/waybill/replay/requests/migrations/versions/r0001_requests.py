"""The tables of requests, rejected messages, requesters and locks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "r0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    long_text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")
    op.create_table(
        "replay_requests",
        sa.Column("id", sa.String(26), primary_key=True),
        sa.Column("document", long_text, nullable=False),
        sa.Column("stream", sa.String(100), nullable=False),
        sa.Column("requester", sa.String(200), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("claim", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("heartbeat_ms", sa.BigInteger),
        sa.Column("not_before_ms", sa.BigInteger, nullable=False),
        sa.Column("cursor", long_text),
        sa.Column("found", sa.BigInteger, nullable=False),
        sa.Column("delivered", sa.BigInteger, nullable=False),
        sa.Column("rejected", sa.BigInteger, nullable=False),
        sa.Column("share", sa.Float, nullable=False),
        sa.Column("started_at_ms", sa.BigInteger),
        sa.Column("finished_at_ms", sa.BigInteger),
        sa.UniqueConstraint("requester", "idempotency_key", name="uq_replay_requests_idempotency_key"),
    )
    op.create_index("ix_replay_requests_state", "replay_requests", ["state", "id"])
    op.create_index("ix_replay_requests_requester", "replay_requests", ["requester", "id"])
    op.create_index("ix_replay_requests_requester_state", "replay_requests", ["requester", "state"])
    op.create_table(
        "replay_rejected",
        sa.Column("request_id", sa.String(26), primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition_number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("message_offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "replay_requesters",
        sa.Column("requester", sa.String(200), primary_key=True),
        sa.Column("last_claimed_ms", sa.BigInteger, nullable=False),
    )
    locks = op.create_table(
        "replay_locks",
        sa.Column("name", sa.String(20), primary_key=True),
        sa.Column("taken", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(locks, [{"name": "create", "taken": 0}])
