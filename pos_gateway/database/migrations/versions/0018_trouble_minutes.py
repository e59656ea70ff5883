"""What each worker saw of merchants in trouble, in each minute."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("worker_minutes", sa.Column("troubles", sa.Text()))


def downgrade() -> None:
    op.drop_column("worker_minutes", "troubles")
