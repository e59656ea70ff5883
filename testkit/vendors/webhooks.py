"""A simulated vendor's notifications: signed by the vendor, delivered late, twice or in disorder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from testkit.patience import PATIENCE


class Notification(NamedTuple):
    """A signed POST to a subscriber."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    attempt: int = 1


def is_refused(status: int) -> bool:
    """Whether a subscriber's answer is no 2xx."""
    return not 200 <= status < 300


@dataclass(slots=True)
class Webhooks:
    """A subscription, and its pending notifications.

    Args:
        url: of the subscriber; without a URL no notification is kept.
        key: the vendor's, for signatures.
        held: late: nothing is delivered until a test sets this to false.
        twice: each notification is delivered twice.
        reverse: the last notification is delivered first.
        statuses: the subscriber's answers, in the order of the deliveries; 0: no answer.
        timeout: seconds that the vendor waits for an answer.
        attempts: deliveries of a notification at most; None: until a subscriber takes the notification.
        comes_again: whether the vendor delivers again after a status.
    """

    url: str | None = None
    key: str = ""
    held: bool = False
    twice: bool = False
    reverse: bool = False
    pending: list[Notification] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    timeout: float = PATIENCE
    attempts: int | None = None
    comes_again: Callable[[int], bool] = is_refused

    def add(self, body: bytes, sign: Callable[[str, str, bytes], Mapping[str, str]]) -> None:
        """Deliver a body, with the headers that ``sign`` makes of key, URL and body."""
        if self.url is not None:
            headers = {"Content-Type": "application/json", **sign(self.key, self.url, body)}
            self.pending.append(Notification(self.url, headers, body))

    def take(self) -> list[Notification]:
        """Notifications to deliver now, in order; none is returned by two calls."""
        if self.held:
            return []
        taken, self.pending = self.pending, []
        if self.reverse:
            taken.reverse()
        return [each for each in taken for _ in range(2 if self.twice else 1)]

    def again(self, notification: Notification, status: int) -> list[Notification]:
        """Keep the subscriber's answer; returns the notification for the next delivery, if any."""
        self.statuses.append(status)
        if notification.attempt == self.attempts or not self.comes_again(status):
            return []
        return [notification._replace(attempt=notification.attempt + 1)]
