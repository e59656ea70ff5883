"""Providers whose merchants are in trouble, and what pausing or resuming all of one concerns."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, select

from pos_gateway.database.schema import merchants, orders
from pos_gateway.ledger.states import FINAL, Action, State
from pos_gateway.merchants.admin import with_provider
from pos_gateway.merchants.pauses import pauses
from pos_gateway.reports.fleet_view import Fleet

#: Providers that are listed, and most merchants in trouble that are looked up: SQLite takes no more
#: than 32,766 parameters.
MAX_PROVIDERS, _LOOKED_UP = 10, 20_000


@dataclass(frozen=True, slots=True)
class ProviderTrouble:
    """A provider with merchants in trouble, as workers report them."""

    provider: str
    merchants: int
    in_trouble: int
    paused: int
    #: Orders of those in trouble that wait in workers or are parked.
    held_up: int


@dataclass(frozen=True, slots=True)
class ProviderStanding:
    """What pausing or resuming a provider concerns."""

    merchants: int
    paused: int
    #: Those that were paused with the provider: it is resumed with these.
    paused_with_it: int
    #: Orders that wait in workers or are parked, as far as workers report.
    held_up: int
    #: Orders in the ledger that have not ended.
    open: int


def providers_in_trouble(engine: Engine, fleet: Fleet) -> Sequence[ProviderTrouble]:
    """Those with most merchants in trouble, the worst first. Two queries; raises SQLAlchemyError."""
    held_up = _held_up(fleet)
    in_trouble: dict[str, list[str]] = defaultdict(list)
    with engine.connect() as connection:
        of_these = merchants.c.id.in_(list(held_up)[:_LOOKED_UP])
        query = select(merchants.c.id, merchants.c.provider).where(of_these)
        for merchant_id, provider in connection.execute(query):
            if provider is not None:
                in_trouble[provider].append(merchant_id)
        worst = sorted(in_trouble, key=lambda each: (-len(in_trouble[each]), each))[:MAX_PROVIDERS]
        totals = _totals(connection, worst)
    return [
        ProviderTrouble(
            provider,
            merchants=totals.get(provider, (0, 0))[0],
            in_trouble=len(in_trouble[provider]),
            paused=totals.get(provider, (0, 0))[1],
            held_up=sum(held_up[each] for each in in_trouble[provider]),
        )
        for provider in worst
    ]


def provider_standing(engine: Engine, fleet: Fleet, provider: str) -> ProviderStanding | None:
    """The provider's merchants and orders; None: no merchant has it. Raises SQLAlchemyError."""
    held_up = _held_up(fleet)
    of_it = merchants.c.provider == provider
    still_open = (
        select(func.count())
        .select_from(orders.join(merchants, merchants.c.id == orders.c.merchant_id))
        .where(of_it, orders.c.action == Action.SUBMIT, orders.c.state.in_(_OPEN))
    )
    with engine.connect() as connection:
        query = select(merchants.c.id, merchants.c.paused).where(of_it)
        found = {row.id: row.paused for row in connection.execute(query)}
        if not found:
            return None
        are_paused = [each for each, is_paused in found.items() if is_paused]
        why = pauses(connection, are_paused).values()
        return ProviderStanding(
            merchants=len(found),
            paused=len(are_paused),
            paused_with_it=sum(each.details == with_provider(provider) for each in why),
            held_up=sum(held_up[each] for each in found),
            open=connection.scalar(still_open) or 0,
        )


#: By the index of states.
_OPEN = [state for state in State if state not in FINAL]


def _held_up(fleet: Fleet) -> Counter[str]:
    """The merchants in trouble, each with its orders that wait or are parked."""
    held_up: Counter[str] = Counter(dict.fromkeys(fleet.failing, 0))
    for worker in fleet.workers:
        for each in worker.report.troubles:
            held_up[each.merchant_id] += each.held_up
    return held_up


def _totals(connection: Connection, providers: Sequence[str]) -> dict[str, tuple[int, int]]:
    """How many merchants each has, and how many of them are paused."""
    column = merchants.c.provider
    query = select(column, merchants.c.paused, func.count()).where(column.in_(providers))
    totals: dict[str, tuple[int, int]] = {}
    for provider, is_paused, count in connection.execute(
        query.group_by(column, merchants.c.paused)
    ):
        number, paused = totals.get(provider, (0, 0))
        totals[provider] = number + count, paused + (count if is_paused else 0)
    return totals
