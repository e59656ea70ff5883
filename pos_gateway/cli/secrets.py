"""``pos-gateway secrets``: the keys that merchants' secrets are sealed with."""

import click

from pos_gateway.cli.database import merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.output import notice


@click.group()
def secrets() -> None:
    """Look after the keys that merchants' secrets are sealed with in the database.

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
    """Seal all secrets with the first of POS_GATEWAY_SECRET_KEY's keys.

    Workers go on meanwhile. What is sealed with it already stays as it is, so that it can be run
    again after an interruption.

    Exit code: 0, or 1 if a merchant's secrets cannot be opened.
    """
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
