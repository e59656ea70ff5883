"""When an order's doubt began, however often it was sent again since."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("orders", sa.Column("in_doubt_since", sa.Double()))


def downgrade() -> None:
    op.drop_column("orders", "in_doubt_since")
