"""``pos-gateway secrets``: the keys that seal merchants' secrets and orders."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pos_gateway.cli.database import database
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.output import notice

if TYPE_CHECKING:
    from pos_gateway.ledger.resealing import Resealed


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
      1. put the new key behind the present one, everywhere:  POS_GATEWAY_SECRET_KEY=OLD,NEW
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

    What no key opens stays as it is, and does not stop the rest.

    Exit code: 0, or 1 if there is something that no key opens.
    """
    from pos_gateway.ledger.payloads import Payloads
    from pos_gateway.ledger.resealing import reseal, reseal_events
    from pos_gateway.merchants.store import MerchantStore
    from pos_gateway.runtime.vault import Vault
    from pos_gateway.settings import Settings

    vault = Vault(Settings.from_environment().secret_keys)
    payloads = Payloads(vault)
    left = []
    with database() as engine:
        for what, batches in (
            ("merchants", MerchantStore(engine, vault=vault).reseal()),
            ("orders", reseal(engine, payloads)),
            ("events", reseal_events(engine, payloads)),
        ):
            unopened = _seal(what, batches)
            left += [f"{unopened} {what}"] if unopened else []
    if left:
        raise Failure(
            f"no key opens {', '.join(left)}, which stay as they are; put the key that they are sealed "
            "with behind the others in POS_GATEWAY_SECRET_KEY, and run this again"
        )


def _seal(what: str, batches: "Iterator[Resealed]") -> int:
    """Print the batches' totals; returns how many cannot be opened. The first of those is named."""
    looked_at = sealed = unopened = 0
    for batch in batches:
        if batch.unopened and not unopened:
            notice(batch.unopened[0])
        looked_at, sealed = looked_at + batch.looked_at, sealed + batch.sealed
        unopened += len(batch.unopened)
        if looked_at % 10_000 < batch.looked_at:
            notice(f"{looked_at} {what} looked at, {sealed} sealed anew")
    click.echo(f"{sealed} of {looked_at} {what} sealed anew")
    return unopened
