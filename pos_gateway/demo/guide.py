"""What the demo's server prints for its user: where its page is, tokens, and commands to copy."""

from pos_gateway.demo import story
from pos_gateway.demo.cast import PARTS, REQUEST_TIMEOUT

_CURL = 'curl -sS -H "Authorization: Bearer $TOKEN"'


def guide(url: str, operator: str, token: str, well: float) -> str:
    """The guide. The commands are those of docs/http.md, and need the line with URL and TOKEN first.

    Args:
        operator: the token to log in with.
        token: a backend's.
        well: seconds until the trouble begins.
    """
    merchants = ", ".join(f"{part.prefix}-0 to {part.ids[-1]} ({part.says})" for part in PARTS)
    return f"""\
The operations page, with {story.RATE:g} orders a second on it:

  {url}/

Log in there with this access token, which is an operator's:

  {operator}

For {well:g} s only the merchants below that are slow or silent by design are in trouble. Then {story.SLOW} takes {story.SECONDS:g} s for an order, and {story.SILENT} does not answer any more;
the healthy merchants' orders wait no longer than before. "Merchants" says what is wrong with each, and pauses them.

A green worker delivers the orders. Simulated merchants, by when they answer: {merchants}.
Broker and database are temporary. Ctrl-C stops it all. Dead letters need a broker beside the worker, which the demo has not:
docs/quick-start.md has some, and replays them.

Orders of your own: in another terminal, for the commands below:

{_indented(f"export URL={url} TOKEN={token}")}

Submit an order to a healthy merchant:

{_indented(_submit("order-1", "fast-1"))}

See it, with its attempts and events:

{_indented(f"{_CURL} $URL/v1/merchants/fast-1/orders/order-1")}

Read the events, or wait 30 s for the first (/v1/events/stream has them without end):

{_indented(f'{_CURL} "$URL/v1/events?after=0&wait=30"')}

Submit one to a merchant that never answers: its attempts time out after {REQUEST_TIMEOUT:g} s, and others' orders go on:

{_indented(_submit("order-2", "hang-1"))}

See its attempts:

{_indented(f"{_CURL} $URL/v1/merchants/hang-1/orders/order-2")}

Another order needs another order_id. docs/http.md has the rest.
"""


def _submit(order_id: str, merchant_id: str) -> str:
    return f"""\
{_CURL} -H "Content-Type: application/json" $URL/v1/orders -d '{{
  "order_id": "{order_id}", "merchant_id": "{merchant_id}",
  "placed_at": "2026-01-01T12:00:00Z", "deliver_by": "2099-01-01T00:00:00Z",
  "currency": "EUR", "total": 1700,
  "items": [{{"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}}]}}'"""


def _indented(command: str) -> str:
    return "\n".join(f"  {line}" for line in command.splitlines())
