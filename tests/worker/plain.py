"""Plain Celery as it comes, to show a trap. Run as a program it puts tasks on the queue."""

import sys
import time

from celery import Celery
from kombu import Connection, Queue

app = Celery("plain", broker=sys.argv[1] if __name__ == "__main__" else None)
app.conf.update(
    task_default_queue="plain",
    task_queues=[Queue("plain", queue_arguments={"x-queue-type": "quorum"})],
    task_acks_late=True,
    task_ignore_result=True,
)


@app.task(name="plain.stamp")
def stamp() -> None:
    """Say when this ran."""
    with Connection(app.conf.broker_url) as connection, connection.SimpleQueue("done") as done:
        done.put(time.time())


if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        stamp.apply_async()
