"""Prompt batches, their prompts and jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cotenant.store.models import UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("batch", sa.String(100), nullable=False),
        sa.Column("node", sa.String(200), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("format", sa.String(20), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.String()),
        sa.Column("flow_run_id", sa.String(40)),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("batch", name="pk_batches"),
    )
    op.create_index("ix_batches_node_digest", "batches", ["node", "digest"])
    op.create_table(
        "prompts",
        sa.Column("batch", sa.String(100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("custom_id", sa.String(500)),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("answer", sa.JSON()),
        sa.Column("finished_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("batch", "number", name="pk_prompts"),
        sa.ForeignKeyConstraint(["batch"], ["batches.batch"], name="fk_prompts_batch_batches"),
    )
    op.create_index("ix_prompts_batch_state", "prompts", ["batch", "state", "tries", "number"])
    op.create_table(
        "batch_jobs",
        sa.Column("batch", sa.String(100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("job", sa.BigInteger()),
        sa.Column("numbers", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("outcome", sa.String(40)),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("repeated", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("batch", "number", name="pk_batch_jobs"),
        sa.ForeignKeyConstraint(["batch"], ["batches.batch"], name="fk_batch_jobs_batch_batches"),
    )


def downgrade() -> None:
    for table in ("batch_jobs", "prompts", "batches"):
        op.drop_table(table)
