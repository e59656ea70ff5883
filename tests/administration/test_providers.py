"""Providers with merchants in trouble, and what pausing or resuming all of one concerns."""

from sqlalchemy import Engine

from pos_gateway.administration.providers import (
    MAX_PROVIDERS,
    ProviderStanding,
    ProviderTrouble,
    provider_standing,
    providers_in_trouble,
)
from pos_gateway.ledger.states import State
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.reports.report import Trouble
from tests.administration.conftest import KIM, a_merchant
from tests.administration.test_merchant_view import add_order
from tests.reports.lab import Reports


def test_the_one_with_most_merchants_in_trouble_comes_first(
    engine: Engine, reports: Reports, admin: MerchantAdmin
) -> None:
    assert providers_in_trouble(engine, reports.view.now()) == []
    acme = [a_merchant(f"a{number}", provider="acme") for number in range(5)]
    admin.put([*acme, a_merchant("b", provider="bistro"), a_merchant("alone")], KIM)
    admin.pause(["a0", "a1"], KIM, paused=True)
    troubles = [Trouble("b", waiting=9), Trouble("a1", parked=2), Trouble("a2"), Trouble("gone")]
    reports.worker("one").report(*troubles, Trouble("alone"))
    reports.worker("two").report(Trouble("a1", waiting=3))
    assert providers_in_trouble(engine, reports.view.now()) == [
        ProviderTrouble("acme", merchants=5, in_trouble=2, paused=2, held_up=5),
        ProviderTrouble("bistro", merchants=1, in_trouble=1, paused=0, held_up=9),
    ]


def test_the_list_is_bounded(engine: Engine, reports: Reports, admin: MerchantAdmin) -> None:
    many = [a_merchant(f"m{number}", provider=f"p{number}") for number in range(2 * MAX_PROVIDERS)]
    admin.put(many, KIM)
    reports.worker("one").report(*(Trouble(each.id) for each in many))
    assert len(providers_in_trouble(engine, reports.view.now())) == MAX_PROVIDERS


def test_what_pausing_or_resuming_one_concerns(
    engine: Engine, reports: Reports, admin: MerchantAdmin
) -> None:
    admin.put([a_merchant(each, provider="acme") for each in ("a", "b", "c")], KIM)
    admin.put([a_merchant("other", provider="bistro")], KIM)
    admin.pause(["c"], KIM, paused=True)
    for number, state in enumerate((State.NEW, State.IN_DOUBT, State.ACCEPTED)):
        add_order(engine, f"o{number}", state, 1.0, "a")
    add_order(engine, "o1", State.NEW, 1.0, "other")
    reports.worker("one").report(Trouble("a", waiting=3), Trouble("other", waiting=9))
    fleet = reports.view.now()
    found = provider_standing(engine, fleet, "acme")
    assert found == ProviderStanding(merchants=3, paused=1, paused_with_it=0, held_up=3, open=2)
    admin.pause_provider("acme", KIM, paused=True)
    found = provider_standing(engine, fleet, "acme")
    assert found == ProviderStanding(merchants=3, paused=3, paused_with_it=2, held_up=3, open=2)
    assert provider_standing(engine, fleet, "nothing") is None
