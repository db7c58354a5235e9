"""Each node's device duty as it was copied last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cotenant.store.models import UtcDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("duty", sa.JSON()))
    op.add_column("nodes", sa.Column("duty_at", UtcDateTime()))
