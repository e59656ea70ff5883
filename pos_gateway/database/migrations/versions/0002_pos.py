"""The ids by which a merchant's POS knows it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("merchants", sa.Column("pos", sa.JSON))


def downgrade() -> None:
    op.drop_column("merchants", "pos")
