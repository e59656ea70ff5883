"""The operations page: who is logged in, and what its forms have done."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "page_acts",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False, index=True),
        sa.Column("result", sa.String(16)),
        sa.Column("says", sa.Text()),
        sa.Column("address", sa.Text()),
        sa.Column("shown", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    op.drop_table("page_acts")
    op.drop_table("sessions")
