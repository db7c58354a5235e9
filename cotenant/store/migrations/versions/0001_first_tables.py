"""Nodes, runs with their blocks and windows, certificates, timeline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cotenant.store.models import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("mirrored_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
    )
    op.create_table(
        "runs",
        sa.Column("run", sa.String(100), nullable=False),
        sa.Column("node", sa.String(200), nullable=False),
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("work", sa.String(300), nullable=False),
        sa.Column("duty", sa.Double()),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("ending", sa.String(40)),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime()),
        sa.Column("r", sa.Double()),
        sa.Column("lo", sa.Double()),
        sa.Column("hi", sa.Double()),
        sa.Column("margin", sa.Double()),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_runs"),
    )
    op.create_index("ix_runs_node_started_at", "runs", ["node", "started_at"])
    op.create_table(
        "blocks",
        sa.Column("run", sa.String(100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("order", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(40)),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("row", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run", "number", name="pk_blocks"),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name="fk_blocks_run_runs"),
    )
    op.create_table(
        "windows",
        sa.Column("run", sa.String(100), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("arm", sa.String(10), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("length_s", sa.Double(), nullable=False),
        sa.Column("events", sa.Double()),
        sa.Column("rate", sa.Double()),
        sa.Column("dose", sa.Double()),
        sa.PrimaryKeyConstraint("run", "block", "arm", name="pk_windows"),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name="fk_windows_run_runs"),
    )
    op.create_table(
        "certificates",
        sa.Column("run", sa.String(100), nullable=False),
        sa.Column("node", sa.String(200), nullable=False),
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("duty", sa.Double()),
        sa.Column("issued_at", UtcDateTime()),
        sa.Column("expires_at", UtcDateTime()),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_certificates"),
    )
    op.create_index("ix_certificates_node", "certificates", ["node"])
    op.create_table(
        "timeline",
        sa.Column("node", sa.String(200), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("mono_s", sa.Double()),
        sa.Column("boot_id", sa.String(40)),
        sa.Column("code", sa.String(60), nullable=False),
        sa.Column("severity", sa.String(20), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("node", "seq", name="pk_timeline"),
    )
    op.create_index("ix_timeline_node_at", "timeline", ["node", "at"])
    op.create_index("ix_timeline_code", "timeline", ["code"])


def downgrade() -> None:
    for table in ("timeline", "certificates", "windows", "blocks", "runs", "nodes"):
        op.drop_table(table)
