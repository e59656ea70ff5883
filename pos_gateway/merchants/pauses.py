"""Since when merchants are paused, by whom, and why: from the audit."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from pos_gateway.audit.log import AuditLine, lines
from pos_gateway.database.schema import audit

#: In a line's JSON a value cannot contain it: a quote in one has a backslash before it.
_OF_PAUSED = '%"paused":%'


def pauses(connection: Connection, ids: Sequence[str]) -> dict[str, AuditLine]:
    """The lines that say how these merchants came to be paused, where their last change is one.

    What a release before this one has paused has none.
    """
    of_these = (
        audit.c.merchant_id.in_(ids),
        audit.c.order_id == "",
        audit.c.changes.like(_OF_PAUSED),
    )
    last = select(func.max(audit.c.id)).where(*of_these).group_by(audit.c.merchant_id)
    found = lines(connection, select(audit).where(audit.c.id.in_(last)))
    return {each.merchant_id: each for each in found if each.changes.get("paused", ("", False))[1]}
