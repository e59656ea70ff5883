"""``pos-gateway secrets``: the keys that merchants' secrets and orders are sealed with."""

import click

from pos_gateway.cli.database import database, merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.output import notice


@click.group()
def secrets() -> None:
    """Look after the keys that merchants' secrets and orders are sealed with in the database.

    POS_GATEWAY_SECRET_KEY has them, with commas between: the first one seals, all of them open.
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
    from pos_gateway.vault import new_key

    click.echo(new_key())


@secrets.command()
def rotate() -> None:
    """Seal all secrets, and all that is kept of orders, with the first of POS_GATEWAY_SECRET_KEY's
    keys. Orders that were kept in clear, for want of a key, are sealed too.

    Workers go on meanwhile. What is sealed with it already stays as it is, so that it can be run
    again after an interruption.

    Exit code: 0, or 1 if a merchant's secrets or an order cannot be opened.
    """
    _merchants()
    _orders()


def _merchants() -> None:
    from pos_gateway.vault import CannotOpen

    looked_at = sealed = 0
    with merchant_store() as store:
        try:
            for rows, stale in store.reseal():
                looked_at, sealed = looked_at + rows, sealed + stale
                if looked_at % 10_000 < rows:
                    notice(f"{looked_at} merchants looked at, {sealed} sealed anew")
        except CannotOpen as error:
            raise Failure(f"stopped after {sealed} were sealed anew: {error}") from error
    click.echo(f"{sealed} of {looked_at} merchants sealed anew")


def _orders() -> None:
    from pos_gateway.ledger.payloads import Payloads
    from pos_gateway.ledger.resealing import reseal, reseal_events
    from pos_gateway.settings import Settings
    from pos_gateway.vault import Vault

    payloads = Payloads(Vault(Settings.from_environment().secret_keys))
    unopened = 0
    with database() as engine:
        for what, batches in (
            ("orders", reseal(engine, payloads)),
            ("events", reseal_events(engine, payloads)),
        ):
            looked_at = sealed = 0
            for batch in batches:
                for key, why in batch.unopened[: 1 if not unopened else 0]:
                    notice(f"order {key.order_id!r} of merchant {key.merchant_id!r} is {why}")
                looked_at, sealed = looked_at + batch.looked_at, sealed + batch.sealed
                unopened += len(batch.unopened)
                if looked_at % 10_000 < batch.looked_at:
                    notice(f"{looked_at} {what} looked at, {sealed} sealed anew")
            click.echo(f"{sealed} of {looked_at} {what} sealed anew")
    if unopened:
        raise Failure(f"{unopened} orders cannot be opened with any key, and stay as they are")
