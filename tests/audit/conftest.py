"""A database of each kind, with the audit's writer and reader."""

import pytest
from sqlalchemy import Engine

from pos_gateway.audit.log import AuditLog
from pos_gateway.audit.note import By, Note, write
from tests.tokens.conftest import HandClock


class Audit:
    """Writes lines, each a second after the one before, and reads them."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.log, self.clock = engine, AuditLog(engine), HandClock()

    def write(self, *notes: Note, operator: str = "kim", reason: str | None = None) -> None:
        for note in notes:
            self.clock.seconds += 1
            with self.engine.begin() as connection:
                write(connection, [note], by=By(operator, reason), at=self.clock.now().timestamp())


@pytest.fixture
def audit(engine: Engine) -> Audit:
    return Audit(engine)
