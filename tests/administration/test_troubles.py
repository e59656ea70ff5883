"""Merchants in trouble, with what the database has of them."""

import pytest
from sqlalchemy import Engine

from pos_gateway.administration.removal import counted, remove
from pos_gateway.administration.troubles import troubles
from pos_gateway.audit.note import By
from pos_gateway.domain.errors import AdminError
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.reports.report import Trouble
from tests.administration.conftest import KIM, a_merchant
from tests.reports.lab import Reports
from tests.tokens.conftest import HandClock

OPEN = Trouble("open", breaker="open", breaker_for=12.0, waiting=3, agreed=4, limit=4)


def test_the_worst_come_first_with_what_the_database_has_of_each(
    engine: Engine, reports: Reports, admin: MerchantAdmin, clock: HandClock
) -> None:
    admin.put([a_merchant("open"), a_merchant("paused"), a_merchant("resumed")], KIM)
    clock.seconds += 60
    admin.pause(["paused", "resumed"], By("lee", "outage"), paused=True)
    admin.pause(["resumed"], KIM, paused=False)
    reports.worker("a").report(
        OPEN,
        Trouble("paused", waiting=2),
        Trouble("gone", parked=1, agreed=4),
        Trouble("resumed", waiting=1),
        in_trouble=9,
    )
    reports.worker("b").report(OPEN._replace(breaker="closed", breaker_for=0.0))
    found = troubles(engine, 50, clock)
    words = {each.trouble.merchant_id: each.words for each in found.worst}
    assert list(words)[:2] == ["open", "paused"]
    assert words["open"].startswith("breaker open for 1")
    assert "on 1 of 2 workers" in words["open"]
    assert words["paused"] == "paused by lee since 01:47 UTC (outage): 2 orders wait"
    assert words["gone"] == "no merchant has this id: 1 order is parked"
    assert words["resumed"] == "no worker has loaded its record: 1 order waits"
    assert found.more == 5
    assert [each.trouble.merchant_id for each in troubles(engine, 1, clock).worst] == ["open"]


def test_a_merchant_with_orders_in_workers_is_removed_by_force_alone(
    engine: Engine, reports: Reports, admin: MerchantAdmin
) -> None:
    """A paused merchant's orders wait, and are parked, before the ledger knows them."""
    admin.put([a_merchant("m"), a_merchant("n")], KIM)
    reports.worker("a").report(Trouble("m", waiting=2, parked=3))
    with pytest.raises(
        AdminError, match="workers have orders of merchant 'm': 5 orders wait or are parked"
    ):
        remove(admin, engine, "m", KIM)
    assert admin.seen("m")
    removed = remove(admin, engine, "m", KIM, force=True)
    assert counted(removed) == "5 orders wait or are parked"
    assert counted(remove(admin, engine, "n", KIM)) == ""
