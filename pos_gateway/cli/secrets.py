"""``pos-gateway secrets``: the keys that seal merchants' secrets and orders."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from pos_gateway.cli.database import database
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.output import notice

if TYPE_CHECKING:
    from pos_gateway.ledger.resealing import Resealed


#: How often all rows are gone through, at most: others may write one under an earlier key
#: meanwhile.
PASSES = 5


@click.group()
def secrets() -> None:
    """Administer the keys that seal merchants' secrets and orders in the database.

    POS_GATEWAY_SECRET_KEY has them, comma-separated: the first one seals, all of them open.
    """


@secrets.command()
def key() -> None:
    """Print a new key. Nothing is stored.

    \b
    To change keys while orders flow:
      1. put the new key after the present one, everywhere:  POS_GATEWAY_SECRET_KEY=OLD,NEW
      2. then before it, everywhere:                          POS_GATEWAY_SECRET_KEY=NEW,OLD
      3. pos-gateway secrets rotate
      4. drop the old one:                                    POS_GATEWAY_SECRET_KEY=NEW
    """
    from pos_gateway.runtime.vault import new_key

    click.echo(new_key())


@secrets.command()
def rotate() -> None:
    """Seal all secrets and kept orders with the first key of POS_GATEWAY_SECRET_KEY.

    Orders that were kept in clear, for want of a key, are sealed too. Workers keep running. What is
    sealed with that key already is skipped, so an interrupted run can be repeated.

    What no key opens stays as it is, and does not stop the rest. At the end all rows are counted
    again; while one is left under an earlier key, since others write, all are gone through again.

    Exit code: 0, or 1 if something is left under another key.
    """
    from pos_gateway.auth.grant_store import GrantStore
    from pos_gateway.ledger.payloads import Payloads
    from pos_gateway.ledger.resealing import (
        count_stale,
        count_stale_callbacks,
        count_stale_events,
        reseal,
        reseal_callbacks,
        reseal_events,
    )
    from pos_gateway.merchants.store import MerchantStore
    from pos_gateway.runtime.vault import Vault
    from pos_gateway.settings import Settings

    vault = Vault(Settings.from_environment().secret_keys)
    payloads = Payloads(vault)
    unopened, stale = [], []
    with database() as engine:
        store, grants = MerchantStore(engine, vault=vault), GrantStore(engine, vault)
        for what, once, count in (
            ("merchants", store.reseal, store.count_stale),
            ("orders", partial(reseal, engine, payloads), partial(count_stale, engine, payloads)),
            (
                "events",
                partial(reseal_events, engine, payloads),
                partial(count_stale_events, engine, payloads),
            ),
            (
                "waiting callbacks",
                partial(reseal_callbacks, engine, payloads),
                partial(count_stale_callbacks, engine, payloads),
            ),
            ("grants", grants.reseal, grants.count_stale),
        ):
            closed, left = _seal(what, once, count)
            unopened += [f"{closed} {what}"] if closed else []
            stale += [f"{left} {what}"] if left else []
    if problems := _problems(unopened, stale):
        raise Failure("\n".join(problems))


def _problems(unopened: list[str], stale: list[str]) -> list[str]:
    """What no key opens, and what is left under another key, each with its remedy."""
    problems = []
    if unopened:
        problems.append(
            f"no key opens {', '.join(unopened)}, which stay as they are; put the key that they are "
            "sealed with after the others in POS_GATEWAY_SECRET_KEY, and run this again"
        )
    if stale:
        problems.append(
            f"{', '.join(stale)} are still in clear or under an earlier key, which others write "
            "with; put the new key first in POS_GATEWAY_SECRET_KEY everywhere, and run this again. "
            "Do not drop the earlier one before"
        )
    return problems


def _seal(
    what: str, once: "Callable[[], Iterator[Resealed]]", count: Callable[[], int]
) -> tuple[int, int]:
    """Seal all, and print how many; returns how many no key opens, and how many are left besides.

    The first that no key opens is named.
    """
    total = 0
    for _ in range(PASSES):
        looked_at, unopened = 0, list[str]()
        for batch in once():
            looked_at, total = looked_at + batch.looked_at, total + batch.sealed
            unopened += batch.unopened
            if looked_at % 10_000 < batch.looked_at:
                notice(f"{looked_at} {what} looked at, {total} sealed anew")
        left = max(0, count() - len(unopened))
        if not left:
            break
    if unopened:
        notice(unopened[0])
    click.echo(f"{total} of {looked_at} {what} sealed anew")
    return len(unopened), left
