"""The event pipeline: hydrated bodies, and the leader's progress."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_COLUMNS = {"payload": sa.Text(), "body": sa.Text(), "helper": sa.String(64)}


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.add_column("events", sa.Column(name, kind))
    without = sa.text("position is null")
    op.create_index(
        "events_without_position",
        "events",
        ["id"],
        sqlite_where=without,
        postgresql_where=without,
    )
    op.create_table(
        "pipeline",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("leader", sa.String(64)),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("assigned", sa.BigInteger, nullable=False),
        sa.Column("published", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("pipeline")
    op.drop_index("events_without_position", "events")
    for name in _COLUMNS:
        op.drop_column("events", name)
