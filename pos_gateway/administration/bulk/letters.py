"""A bulk run's work on dead letters.

A letter has no id of the broker's: it is known by a digest of its body and of what was recorded when
it was dead-lettered. A run acts on as many letters of a digest as its preview saw, so a letter that
arrives later, that of an order which failed again, too, is not part of it.

Letters are looked at in passes. Within a pass those that are not selected stay unacknowledged, and
return to the queue at its end; a pass is short, since RabbitMQ ends a consumer that holds a message
for half an hour. Letters may change their order in the queue.
"""

import hashlib
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial

from pos_gateway.administration.bulk.read_ahead import in_batches
from pos_gateway.administration.bulk.run import BulkItem, NewItem
from pos_gateway.administration.bulk.work import Task
from pos_gateway.administration.refusal import Refusal
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue, Incomplete
from pos_gateway.domain.errors import AdminError

#: Seconds of a pass.
PASS = 300.0
#: Letters that the first consumer of a pass holds; each further one holds twice as many.
FIRST_WINDOW = 250
#: Items whose letters are looked for at the same time.
SOUGHT = 10_000
#: Passes in a row that see the whole queue, and none of the letters looked for, until those
#: count as gone; and passes in a row that find none while another consumer holds letters.
FRUITLESS, HINDERED = 2, 30
#: Seconds between such passes, and between two looks whether a preview is alone with the letters; and
#: seconds until it gives up: less than what a page takes for the end of its server.
PAUSE, ALONE = 1.0, 60.0

#: Acts on a letter: returns why it was refused, or None.
Act = Callable[[DeadLetter], Refusal | None]


class LetterWork:
    """The letters of ``orders.dead`` that the filter selects.

    Args:
        broker_url: the broker's.
        is_selected: whether the filter selects a letter.
        judge: why a letter would be refused now, or None.
        ahead: reads what ``judge`` needs of these letters.
        acting: for each pass, given its queue, the operator and the audit's note: acts on a letter.
        clock: seconds that only rise.
        queue: the class of the queue.
    """

    def __init__(
        self,
        broker_url: str,
        *,
        is_selected: Callable[[DeadLetter], bool],
        judge: Act,
        acting: Callable[[DeadLetterQueue, str, str], Act],
        ahead: Callable[[Sequence[DeadLetter]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        queue: type[DeadLetterQueue] = DeadLetterQueue,
    ) -> None:
        self._broker_url = broker_url
        self._is_selected = is_selected
        self._judge = judge
        self._ahead = ahead
        self._acting = acting
        self._clock = clock
        self._open = queue
        self._queue: DeadLetterQueue | None = None

    def found(self) -> Iterator[NewItem | None]:
        """The letters that the filter selects, in the order of the queue, which all of them keep.

        It waits for other readers of the queue, whose letters it would not see. Raises AdminError if
        one stays.
        """
        until, were_others = self._clock() + ALONE, False
        while True:
            with self._open(self._broker_url) as queue:
                if not (queue.others or were_others):
                    yield from self._judged(queue)
                    return
                # Those that left have to be back in the queue: it is opened, and counted, again.
                were_others = queue.others > 0
            if self._clock() >= until:
                raise AdminError(
                    "another reader of orders.dead has letters, so that not all can be seen: another "
                    "pos-gateway dlq, another server that counts them, or a foreign consumer; try again "
                    "in a moment"
                )
            yield from self._pause()

    def _judged(self, queue: DeadLetterQueue) -> Iterator[NewItem | None]:
        for letters in in_batches(queue, lambda each: len(each.body)):
            selected = [*filter(self._is_selected, letters)]
            self._ahead(selected)
            for letter in selected:
                yield _item(letter, self._judge(letter))
            yield None

    def tasks(self, items: Iterable[BulkItem], operator: str, note: str) -> Iterator[Task | None]:
        """The letters of these items. Raises AdminError if another consumer keeps on holding some."""
        wanted = _Wanted(items)
        fruitless = hindered = 0
        while wanted:
            before = wanted.found
            is_whole = yield from self._pass(wanted, operator, note)
            if wanted.found > before:
                fruitless = hindered = 0
                continue
            fruitless, hindered = fruitless + is_whole, hindered + (not is_whole)
            if hindered >= HINDERED:
                raise AdminError(
                    "letters are not there to be found while another consumer of orders.dead has some: "
                    "another operator's command, or another program"
                )
            if fruitless >= FRUITLESS:
                wanted.give_up()
                fruitless = 0
                continue
            yield from self._pause()

    def _pause(self) -> Iterator[None]:
        until = self._clock() + PAUSE
        while self._clock() < until:
            yield None
            self.wait(PAUSE / 10)

    def wait(self, seconds: float) -> None:
        """Wait; a pass's connection is kept alive meanwhile."""
        if self._queue is None:
            time.sleep(seconds)
        else:
            self._queue.wait(seconds)

    def _pass(
        self, wanted: "_Wanted", operator: str, note: str
    ) -> Generator[Task | None, None, bool]:
        """The letters of one pass; returns whether it saw the whole queue."""
        queue = self._open(self._broker_url, first_window=FIRST_WINDOW)
        until = self._clock() + PASS
        with queue:
            self._queue = queue
            try:
                is_alone = queue.consumers() == 0
                act = self._acting(queue, operator, note)
                for letter in queue:
                    item = wanted.take(mark_of(letter))
                    yield None if item is None else Task(item, partial(act, letter))
                    if not wanted or self._clock() >= until:
                        return False
                return is_alone and queue.consumers() <= 1
            except Incomplete:
                return False
            finally:
                self._queue = None


class _Wanted:
    """Items by their letters' digest: the next ones of a run, since letters come in about their order."""

    def __init__(self, items: Iterable[BulkItem]) -> None:
        self._items = iter(items)
        self._by_mark: dict[str, deque[BulkItem]] = defaultdict(deque)
        self._count = 0
        #: Of equal letters those that have begun come last: one that is not there was done.
        self._begun: list[BulkItem] = []
        #: How many were taken.
        self.found = 0
        self._fill()

    def __len__(self) -> int:
        return self._count

    def take(self, mark: str) -> BulkItem | None:
        """The next item with this digest, which is not wanted any more; None: there is none."""
        those = self._by_mark.get(mark)
        if not those:
            return None
        self._count, self.found = self._count - 1, self.found + 1
        item = those.popleft()
        if not those:
            del self._by_mark[mark]
        if self._count <= SOUGHT / 2:
            self._fill()
        return item

    def give_up(self) -> None:
        """The letters of these items are gone: those of the next ones are wanted."""
        self._by_mark.clear()
        self._count = 0
        self._fill()

    def _fill(self) -> None:
        while self._count < SOUGHT:
            item = next(self._items, None)
            if item is None:
                for each in self._begun:
                    self._add(each)
                self._begun = []
                return
            if item.has_begun:
                self._begun.append(item)
            else:
                self._add(item)

    def _add(self, item: BulkItem) -> None:
        self._by_mark[item.mark].append(item)
        self._count += 1


def mark_of(letter: DeadLetter) -> str:
    """The letter's digest: the same however often it is delivered."""
    known = [letter.id, letter.code, letter.reason, letter.at, str(letter.headers.get("task"))]
    digest = hashlib.blake2b(letter.body, digest_size=16)
    digest.update(json.dumps(known).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _item(letter: DeadLetter, refusal: Refusal | None) -> NewItem:
    return NewItem(
        mark_of(letter),
        letter.id,
        letter.merchant_id,
        letter.order_id,
        refusal,
    )
