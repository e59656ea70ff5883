"""``pos-gateway merchants check``: every step before an order's first byte, and a look at the location."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import click

from pos_gateway.adapters.location import LocationProblem
from pos_gateway.adapters.polls import ListsChanges, is_polled
from pos_gateway.adapters.pos_fields import POS_ID
from pos_gateway.adapters.protocol import Adapter, DescribesLocation, ReadsCallbacks
from pos_gateway.adapters.registry import misfits
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.auth.authenticator import GRANT
from pos_gateway.cli import output
from pos_gateway.cli.database import catalog_store, merchant_store
from pos_gateway.cli.exit_codes import INTERRUPTED
from pos_gateway.cli.findings import fail, ok, show
from pos_gateway.cli.green_process import become_green
from pos_gateway.cli.interrupt import CtrlC
from pos_gateway.cli.merchants import require
from pos_gateway.cli.pipeline import in_order
from pos_gateway.cli.progress import progress_to
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CREDENTIAL_REFUSED, one_line
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.settings import Settings
from pos_gateway.telemetry.log import configure
from pos_gateway.transport.errors import TransportError

#: Merchants checked concurrently.
CONCURRENCY = 50

_IMPORT = "mend the record (pos-gateway merchants import FILE)"
_IMPORT_CATALOG = "mend the catalog (pos-gateway merchants catalog import FILE)"
#: Remedies, by the problem's code.
_ADVICE = {
    "secret_key": "set POS_GATEWAY_SECRET_KEY as it was when the merchant was imported",
    **dict.fromkeys(
        (CREDENTIAL_REFUSED, "token"),
        "are auth.token_url, auth.client_id and auth.client_secret right?",
    ),
    GRANT: "bring in a new grant: pos-gateway merchants set (docs/authentication.md)",
    "security": "if it is yours: POS_GATEWAY_ALLOWED_NETWORKS, POS_GATEWAY_ALLOWED_PORTS",
    "certificate": "to trust its authority: auth.tls.authority, or POS_GATEWAY_CA_FILE",
    "tls": "does it take auth.tls.certificate, or want one?",
    "client_certificate": _IMPORT,
    "url": _IMPORT,
    "dns": "is the name right, and does this machine's resolver know it?",
    "look_ups": "do this machine's name servers answer?",
    "local": "this machine lacks something: ulimit -n",
}
#: Types of ``auth`` that the POS alone can judge, by the first order: the check sends no request.
_UNTRIED = {"api_key": "key", "basic": "password", "bearer": "token", "hmac": "secret"}
_OTHERWISE = "is it up, and does it let this machine in?"


class _Problem(NamedTuple):
    """A problem that blocks a merchant's orders, and its remedy."""

    what: str
    advice: str


class _Looked(NamedTuple):
    """What a check has found of a merchant."""

    merchant: Merchant
    problem: _Problem | None
    #: What the POS says of the location; None: the POS was not asked.
    location: Sequence[str] | None = None
    #: How the gateway hears of accepted orders' changes; None: not at all, though the POS has a way.
    outcomes: str | None = ""

    @property
    def untried(self) -> str | None:
        """The credential that no request was sent with."""
        is_tried = self.problem is not None or self.location is not None
        return None if is_tried else _UNTRIED.get(self.merchant.auth.type)


@click.command()
@click.argument("merchant_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="JSON Lines: id, ok, problem, advice, not_tried, location, outcomes.",
)
def check(merchant_ids: Sequence[str], as_json: bool) -> None:
    """Run all that a worker does before it sends an order, for these merchants or for all of them.

    Is the record right for its adapter, can its secrets be opened, is an access token available,
    does the name resolve to an allowed address, does it answer, and does TLS succeed both ways?
    Square, Toast, Clover and HubRise are asked for the location's state: active, scopes, currency, hours, stock.
    Any other POS gets no request, so a key, a password or a token of the record is not tried: the line
    says so. It also says if nothing is heard of an order once it is accepted: no callbacks, no polls. A line for each merchant: ok, or the problem and its remedy.

    \b
    Examples:
      pos-gateway merchants check
      pos-gateway merchants check m1 m2
      pos-gateway merchants check --json | jq -r 'select(.ok | not) | .id'

    Exit code: 0, 1 if something is wrong, 130 after Ctrl-C.
    """
    become_green("merchants", "check", *(["--json"] if as_json else []), "--", *merchant_ids)
    merchants = require(merchant_ids) if merchant_ids else _all()
    configure(logging.CRITICAL)  # problems are printed below
    gate = Gateway(Settings.from_environment())
    found: list[_Looked] = []
    wrong = 0
    with catalog_store() as catalogs, progress_to(len(merchants)) as progress, CtrlC() as ctrl_c:
        work = partial(_checked, gate, catalogs)
        wanted = ctrl_c.until_pressed(iter(merchants))
        for each in in_order(work, wanted, width=CONCURRENCY):
            found.append(each)
            wrong += each.problem is not None
            progress.update(f"{len(found)} of {len(merchants)}, {wrong} wrong", len(found))
    gate.stop()
    for each in found:
        (_show_json if as_json else _show)(each)
    if wrong or ctrl_c.pressed:
        raise click.exceptions.Exit(INTERRUPTED if ctrl_c.pressed else 1)


def _all() -> list[Merchant]:
    with merchant_store() as store:
        return list(store.all())


def _checked(gate: Gateway, catalogs: CatalogStore, merchant: Merchant) -> _Looked:
    whole = merchant.with_catalog(catalogs.get(merchant.id))
    problem = _misfit(gate, whole) or _trouble(gate, whole)
    adapter = gate.adapters.get(merchant.adapter)
    outcomes = "" if adapter is None else _outcomes(merchant, adapter)
    if problem is not None or not isinstance(adapter, DescribesLocation):
        return _Looked(merchant, problem, outcomes=outcomes)
    try:
        said = adapter.location(whole, gate.caller.asking(whole))
    except LocationProblem as error:
        return _Looked(merchant, _Problem(str(error), error.advice))
    return _Looked(merchant, None, [*map(one_line, said)], outcomes)


def advice(error: TransportError) -> str:
    """The remedy of a failed exchange."""
    return _ADVICE.get(error.code, _OTHERWISE)


def _outcomes(merchant: Merchant, adapter: Adapter) -> str | None:
    ways = {
        "callbacks": isinstance(adapter, ReadsCallbacks)
        and merchant.auth.webhook_signature_key is not None,
        "polls": is_polled(merchant, adapter),
    }
    said = " and ".join(way for way, is_set_up in ways.items() if is_set_up)
    return said or (None if isinstance(adapter, ListsChanges) else "")


def _misfit(gate: Gateway, merchant: Merchant) -> _Problem | None:
    problems = misfits(merchant, gate.adapters)
    if not problems:
        return None
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    is_catalogs = problems[0].field == POS_ID
    return _Problem(f"{problems[0]}{more}", _IMPORT_CATALOG if is_catalogs else _IMPORT)


def _trouble(gate: Gateway, merchant: Merchant) -> _Problem | None:
    at = f"base_url {merchant.base_url}"
    for where, step in (("auth", gate.caller.prepare), (at, gate.caller.reach)):
        try:
            step(merchant)
        except TransportError as error:
            return _Problem(f"{where}: {error}", advice(error))
    return None


def _show(found: _Looked) -> None:
    merchant, problem = found.merchant, found.problem
    if problem is not None:
        show(fail(f"{merchant.id}: {problem.what}", problem.advice))
        return
    said = list(found.location or ())
    if found.untried:
        said.append(f"its {found.untried} was not tried; the POS judges it with the first order")
    if found.outcomes is None:
        said.append("nothing is heard of its accepted orders: set up callbacks, or pos.poll ON")
    elif found.outcomes:
        said.append(f"{found.outcomes} say what becomes of its orders")
    paused = " (paused)" if merchant.paused else ""
    show(ok(f"{merchant.id}{paused}{': ' if said else ''}{'; '.join(said)}"))


def _show_json(found: _Looked) -> None:
    what, advice = found.problem or (None, None)
    record = {"id": found.merchant.id, "ok": found.problem is None, "problem": what}
    record |= {"advice": advice, "not_tried": found.untried, "location": found.location}
    record["outcomes"] = found.outcomes or None
    output.json_line(record)
