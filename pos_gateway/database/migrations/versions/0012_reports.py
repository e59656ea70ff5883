"""What workers report, and what each has counted by the minute."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_COUNTED = (
    *("taken", "accepted", "rejected", "cancelled", "expired", "failed", "pending", "in_doubt"),
    *(f"waited_{number}" for number in range(11)),
)


def upgrade() -> None:
    op.create_table(
        "worker_reports",
        sa.Column("worker", sa.String(64), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("lasts", sa.Double(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        *_counters(sa.BigInteger),
    )
    op.create_table(
        "worker_minutes",
        sa.Column("minute", sa.Integer(), primary_key=True),
        sa.Column("worker", sa.String(64), primary_key=True),
        *_counters(sa.Integer),
    )


def downgrade() -> None:
    op.drop_table("worker_minutes")
    op.drop_table("worker_reports")


def _counters(kind: type[sa.Integer]) -> Iterator[sa.Column[int]]:
    return (sa.Column(name, kind(), nullable=False, server_default="0") for name in _COUNTED)
