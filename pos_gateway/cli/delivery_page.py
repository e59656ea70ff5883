"""``docs/delivery.md``: an attempt's outcomes, generated from the code."""

from http import HTTPStatus

_INTRODUCTION = """\
# What an attempt can come to

This page is generated from the code by `pos-gateway schema`.

The rule behind it: **before the first byte of the request has left, a failure is provably no
delivery and may be tried again. After it, anything short of one complete, valid reply leaves the
order in doubt**: it may have been received. A connection that saw anything unexpected is closed,
never used again.

| outcome | what follows |
|---|---|
| `accepted`, `rejected`, `cancelled` | the POS has decided: an event, and the order is done |
| `pending` | the POS has the order: an event, then it is asked until it has decided |
| `retry` | not delivered, for certain: tried again after {first:g} s, then up to twice as long each time, {longest:g} s at most, at random within that, and not before `Retry-After`; until `deliver_by`, then `order.expired`. A wait that would end later is cut short, so that a last attempt begins {last:g} s before it |
| `in_doubt` | the same, but a POS with keys gets the same key again, one that can be asked is asked first, and one that can do neither is left to a person at once. If that lasts until `deliver_by`: `order.in_doubt`, and it is asked for another hour; then [a person](operating.md) decides |
| `failed` | a retry is no use until a person changes something: `order.failed`, and a dead letter |
| `expired` | too late: `order.expired`, and a dead letter |

What that makes of an order depends on whether the POS may have had it from an earlier attempt:

{follows}

A `failed` after an outcome that was in doubt is not certain any more, since the order may have been
delivered: it stays in doubt. Nor is a `rejected`: the POS is asked for the order, and what it says counts;
one that does not know it has first had the time to make it. More in [the ledger](ledger.md#in-doubt).
"""

_FAILURES = """
## Without a reply

The codes are the events' `reason.code`. An exception counts as the most specific class that is named.

| exception | code | before the first byte left | after |
|---|---|---|---|
"""

_OWN = """
The gateway's own words beside those:

| code | when | outcome |
|---|---|---|
| `dns` | the name has no address, or none is known within the budget for connecting | `retry` |
| `connect` | no address answers within that budget (5 s for all of them together) | `retry` |
| `fenced` | this worker was held up for so long that another one may have the order | `retry` |
| `local` | this machine has no descriptors, ports or memory left; the merchant is not blamed | `retry` |
| `security` | an address that is not public, a port that a POS may not have, plain HTTP | `failed` |
| `url` | no URL that can be called | `failed` |
| `timeout` | the deadline over the whole exchange passed | `retry` before the first byte left, `in_doubt` after |
| `cut_short` | ended early, since others needed its slot | the same |
| `cut` | the reply ends too early | `in_doubt` |
| `reply_too_long` | a body of more than the request expects: 32 KiB for an acknowledgement and for whatever has a status of 400 or more, 256 KiB at most | `in_doubt` |
| `encoding` | a compressed reply, though `identity` was asked for | `in_doubt` |
"""

_STATUSES = """
## A reply of which the POS's own documentation says nothing else

| status | outcome | code |
|---|---|---|
"""


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__.removesuffix(".exceptions").removeprefix("_")
    return kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"


def delivery_page() -> str:
    """The page as Markdown."""
    from pos_gateway.adapters.replies import by_status
    from pos_gateway.domain.retry import Backoff
    from pos_gateway.processing.decision import FOLLOWS, LAST_ATTEMPT
    from pos_gateway.transport.exchange import Reply
    from pos_gateway.transport.failures import TABLE, Verdict

    meanings = {
        Verdict.BY_PROGRESS: ("`retry`", "`in_doubt`"),
        Verdict.CONFIGURATION: ("`failed`", "`failed`"),
        Verdict.HANDSHAKE: ("`failed`", "`in_doubt`; `failed` if it refuses our certificate"),
    }
    failures = [
        f"| `{_name(kind)}` | `{row.code}` "
        f"| {meanings[row.verdict][0]} | {meanings[row.verdict][1]} |"
        for kind, row in TABLE.items()
    ]
    statuses = []
    for status in HTTPStatus:
        if status >= 200:
            outcome = by_status(Reply(status, {}, b""))
            code = outcome.reason.code if outcome.reason else ""
            statuses.append(f"| {int(status)} {status.phrase} | `{outcome.kind}` | `{code}` |")
    backoff = Backoff()
    follows = [
        "| outcome | the POS cannot have had it | it may have it |",
        "|---|---|---|",
        *(f"| `{kind}` | {never} | {perhaps} |" for kind, (never, perhaps) in FOLLOWS.items()),
    ]
    introduction = _INTRODUCTION.format(
        first=backoff.first,
        longest=backoff.longest,
        last=LAST_ATTEMPT,
        follows="\n".join(follows),
    )
    tables = _FAILURES + "\n".join(failures) + "\n" + _OWN + _STATUSES + "\n".join(statuses)
    return introduction + tables + "\n"
