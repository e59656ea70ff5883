"""The merchants' directory."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "merchants",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("provider", sa.String(128)),
        sa.Column("adapter", sa.String(64), nullable=False),
        sa.Column("base_url", sa.String(2048), nullable=False),
        sa.Column("max_concurrency", sa.Integer),
        sa.Column("request_timeout", sa.Float),
        sa.Column("auth", sa.JSON, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("merchants")
