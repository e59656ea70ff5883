"""Start, operator and reason of merchants' pauses, from the audit."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from pos_gateway.audit.log import AuditLine, lines
from pos_gateway.database.schema import audit

#: No value in a line's JSON contains this text: a quote inside has a backslash before.
_OF_PAUSED = '%"paused":%'


def pauses(connection: Connection, ids: Sequence[str]) -> dict[str, AuditLine]:
    """The audit lines of merchants' last change of ``paused``, if the change was a pause.

    Pauses of earlier releases have no line.
    """
    of_these = (
        audit.c.merchant_id.in_(ids),
        audit.c.order_id == "",
        audit.c.changes.like(_OF_PAUSED),
    )
    last = select(func.max(audit.c.id)).where(*of_these).group_by(audit.c.merchant_id)
    found = lines(connection, select(audit).where(audit.c.id.in_(last)))
    return {each.merchant_id: each for each in found if each.changes.get("paused", ("", False))[1]}
