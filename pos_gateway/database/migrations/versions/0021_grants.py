"""The tokens of grants that operators bring in, as they are refreshed."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("refresh_expires_at", sa.Double()),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("refreshed_at", sa.Double(), nullable=False),
        sa.Column("refresher", sa.String(32)),
        sa.Column("refused_at", sa.Double()),
        sa.Column("refusal", sa.String(256)),
    )


def downgrade() -> None:
    op.drop_table("grants")
