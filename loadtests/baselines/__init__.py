"""What the gateway is compared with: what a user would write instead, and run as its makers advise.

All of them take the same orders from the same quorum queue, acknowledge an order once its merchant has
answered, and do no more: they look no merchant up, know no admission, publish no outcome of an
order, and forget one whose post failed. What they cost less than the gateway is what that costs.

Environment: ``PLAIN_BROKER_URL``; ``PLAIN_MERCHANTS_URL``, to which ``/<merchant>/orders`` is
added; ``PLAIN_TIMEOUT``, seconds of an exchange (10).
"""

import os

#: The names by which the messages ask for an order to be posted, of Celery and of dramatiq.
TASK, ACTOR = "plain.submit_order", "submit_order"
#: Orders in flight at once, where one process can have as many.
SLOTS = 200

BROKER_URL = os.environ.get("PLAIN_BROKER_URL", "amqp://guest:guest@localhost:5672//")
MERCHANTS_URL = os.environ.get("PLAIN_MERCHANTS_URL", "http://localhost:8000/m")
TIMEOUT = float(os.environ.get("PLAIN_TIMEOUT", "10"))
