"""The backend's split while merchants move from a Celery task to the gateway (docs/migrating.md).

An order has one way, which is stored before it is submitted first and kept by everything that follows:
a submission that is repeated, a cancel request. A move decides about orders that come later alone.
"""

OLD, GATEWAY = "celery", "gateway"
TABLES = """
create table if not exists moved_merchants (merchant_id text primary key);
create table if not exists order_ways (
    merchant_id text, order_id text, way text not null, primary key (merchant_id, order_id));
"""
DECIDE = """
insert into order_ways
select ?, ?, case when exists (select 1 from moved_merchants where merchant_id = ?)
             then 'gateway' else 'celery' end
where true on conflict do nothing
"""


class Moving:
    """Submits each order by the way that it has.

    Args:
        database: the backend's own; a sqlite3 connection here.
        old: submits an order to the Celery task: ``send_order.delay``.
        gateway: submits an order to the gateway: ``OrderClient.submit``.
    """

    def __init__(self, database, old, gateway):
        self._database = database
        self._submit = {OLD: old, GATEWAY: gateway}
        database.executescript(TABLES)

    def submit(self, order):
        """Submit the order. After an error call it again: the way stays the same."""
        self._submit[self.way(order["merchant_id"], order["order_id"])](order)

    def way(self, merchant_id, order_id):
        """The order's way, decided if it is new."""
        with self._database:
            self._database.execute(DECIDE, (merchant_id, order_id, merchant_id))
        (way,) = self._database.execute(
            "select way from order_ways where merchant_id = ? and order_id = ?",
            (merchant_id, order_id),
        ).fetchone()
        return way

    def move(self, *merchant_ids):
        """New orders of these merchants go to the gateway."""
        with self._database:
            self._database.executemany(
                "insert into moved_merchants values (?) on conflict do nothing",
                [(each,) for each in merchant_ids],
            )

    def move_back(self, *merchant_ids):
        """New orders of these merchants go to the Celery task."""
        with self._database:
            self._database.executemany(
                "delete from moved_merchants where merchant_id = ?",
                [(each,) for each in merchant_ids],
            )


def shadow(order):
    """A copy for the gateway, under a merchant's id of its own, whose record leads to a simulated POS."""
    copy = {**order, "merchant_id": f"shadow-{order['merchant_id']}"}
    copy.pop("customer", None)
    return copy
