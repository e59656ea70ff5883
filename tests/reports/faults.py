"""Faults in the reports, each with the test that must find it; see ``test_planted_faults.py``.

``python -m tests.reports.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "what a worker counts is added as a difference",
        "reports/store",
        "new = {name: counters[name] - before[name] for name in COUNTED}",
        "new = dict(counters)",
        "store::a_worker_that_dies",
    ),
    Fault(
        "a minute is added to, not replaced",
        "reports/store",
        "sums = {name: worker_minutes.c[name] + new.excluded[name] for name in COUNTED}",
        "sums = {name: new.excluded[name] for name in COUNTED}",
        "store::a_worker_that_dies",
    ),
    Fault(
        "nothing counts twice once a row is pruned",
        "reports/store",
        "unknown = dict.fromkeys(COUNTED, 0) if is_first else counters",
        "unknown = dict.fromkeys(COUNTED, 0)",
        "store::after_its_row_is_pruned",
    ),
    Fault(
        "the first report counts from the start",
        "reports/store",
        "unknown = dict.fromkeys(COUNTED, 0) if is_first else counters",
        "unknown = counters",
        "store::a_restarted_worker",
    ),
    Fault(
        "reports ahead of time are pruned",
        "reports/store",
        "or_(at < Now() - GONE, at > Now() + GONE)",
        "at < Now() - GONE",
        "store::from_the_future",
    ),
    Fault(
        "minutes ahead of time are pruned",
        "reports/store",
        "or_(minute < ThisMinute() - KEPT, minute > ThisMinute() + _MINUTES_AHEAD)",
        "minute < ThisMinute() - KEPT",
        "store::from_the_future",
    ),
    Fault(
        "minutes are pruned after two hours",
        "reports/store",
        "minute < ThisMinute() - KEPT",
        "minute < ThisMinute() - 10 * KEPT",
        "store::what_is_old_is_pruned",
    ),
    Fault(
        "an idle minute takes no row",
        "reports/store",
        "if any(new.values()):",
        "if True:",
        "store::a_minute_without_an_order",
    ),
    Fault(
        "a row ahead of time is no live worker",
        "reports/fleet_view",
        "age < worker_reports.c.lasts + LOST, age > -AHEAD",
        "age < worker_reports.c.lasts + LOST",
        "store::from_the_future",
    ),
    Fault(
        "a worker that is silent is not alive",
        "reports/fleet_view",
        "counts = age < worker_reports.c.lasts",
        "counts = age < worker_reports.c.lasts + LOST",
        "store::a_suspended_worker",
    ),
    Fault(
        "a merchant's times go on after the report",
        "reports/fleet_view",
        "since=max(map(add, of.since, seen.ages))",
        "since=max(of.since)",
        "fleet_view::times_are_counted_from_the_report",
    ),
    Fault(
        "the worst of all workers together come first",
        "reports/fleet_view",
        "held_up += each.waiting + each.parked",
        "held_up = max(held_up, each.waiting + each.parked)",
        "fleet_view::the_worst_merchants_come_first",
    ),
    Fault(
        "the worst state counts",
        "reports/fleet_view",
        '_BREAKERS = ("open", "half_open", "closed")',
        '_BREAKERS = ("half_open", "open", "closed")',
        "fleet_view::forty_workers_report_is_one",
    ),
    Fault(
        "the first worker to call a merchant again counts",
        "reports/fleet_view",
        "max(0.0, min(opens, default=0.0))",
        "max(0.0, max(opens, default=0.0))",
        "fleet_view::forty_workers_report_is_one",
    ),
    Fault(
        "an unreadable report hides no other",
        "reports/report",
        "    except ValueError:\n        return None\n",
        "    except TypeError:\n        return None\n",
        "fleet_view::hides_no_other",
    ),
    Fault(
        "a report is no larger than its limit",
        "reports/report",
        "if len(text) <= LARGEST or not troubles:",
        "if True:",
        "report::odd_ids_and_the_limit",
    ),
    Fault(
        "a later release's fields are ignored",
        "reports/report",
        "list(map(Trouble._make, rows)) if is_ours else _understood(rows)",
        "list(map(Trouble._make, rows))",
        "report::a_later_releases_report",
    ),
    Fault(
        "a field of another type is left out",
        "reports/report",
        "[each if isinstance(each, kind) else usual for",
        "[each for",
        "report::a_later_releases_report",
    ),
    Fault(
        "a dropped report's counters come with the next one",
        "reports/reporter",
        "        self._run(\n",
        "        self._is_first = False\n        self._run(\n",
        "reporter::cannot_be_stored_is_dropped",
    ),
    Fault(
        "a mistake does not end the reports",
        "reports/reporter",
        "        except Exception:  # no error",
        "        except LookupError:  # no error",
        "reporter::until_it_is_stopped",
    ),
    Fault(
        "a worker that stops is not lost",
        "reports/reporter",
        "            self._succeeds(lambda: self._run(lambda: self._store.remove(worker)))",
        "            pass",
        "store::a_stopped_worker_is_not_lost",
    ),
    Fault(
        "an order waits at most once in half a minute for a database that fails",
        "reports/reporter",
        "(EVERY if self._succeeds(self.report) else AFTER_FAILURE)",
        "(EVERY if self._succeeds(self.report) else EVERY)",
        "reporter::does_not_wait_for_a_database",
    ),
    Fault(
        "looking at all merchants takes half a thousandth of a core",
        "worker/trouble_watch",
        "self._look_at = now + cpu / SHARE",
        "self._look_at = now",
        "trouble_watch::ten_thousand",
    ),
    Fault(
        "failures are those of the window",
        "admission/evidence",
        "return self._failures[len(self._failures) - failures :]",
        "return self._failures",
        "trouble_watch::of_the_window",
    ),
    Fault(
        "a breaker is open since it was closed",
        "admission/health",
        "        if breaker.is_closed:\n            lane.noted()",
        "        if True:\n            lane.noted()",
        "trouble_watch::open_since_it_was_closed",
    ),
    Fault(
        "trouble has lasted since it was first seen",
        "worker/trouble_watch",
        "before.get(each.merchant_id, now)",
        "now",
        "trouble_watch::lasts_until_it_is_over",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "reports")
