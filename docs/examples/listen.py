"""Prints every status event. Needs Kombu; ``consumer.py`` acts on each once, in order.

python listen.py amqp://guest:guest@localhost:5672//
"""

import json
import sys

from kombu import Connection, Consumer, Queue


def on_message(message):
    event = json.loads(message.body)
    print(event["position"], event["type"], event["order_id"], flush=True)
    message.ack()  # what is not acknowledged is delivered again


with Connection(sys.argv[1]) as connection:
    queue = Queue("order-events", no_declare=True)  # the gateway declares it
    with Consumer(connection.channel(), [queue], on_message=on_message):
        while True:
            connection.drain_events()
