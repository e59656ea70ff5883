"""Faults in the merchants, each with the test that must find it; see ``test_planted_faults.py``.

``python -m tests.merchants.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "an edit is read once",
        "merchants/edits",
        "        self._highest = highest\n",
        "",
        "edits::edits_are_read_once",
    ),
    Fault(
        "of a merchant's two rows the later one counts",
        "cache/refresh_ahead",
        "max(version, self._least(key)), now",
        "version, now",
        "cache::a_value_loaded_before_an_edit_is_not_served_after_it",
    ),
    Fault(
        "an edit takes as long however many were edited twice",
        "cache/refresh_ahead",
        "        self._edits[key] = max(version, self._least(key)), now\n        self._edits.move_to_end(key)",
        "        self._edits = dict(self._edits) | {key: (version, now)} if type(self._edits) is not dict else self._edits\n        self._edits.pop(key, None)\n        self._edits[key] = version, now",
        "cache::an_edit_takes_as_long_however_many_were_edited_twice",
    ),
    Fault(
        "a value is read while it is renewed",
        "cache/refresh_ahead",
        "                entry.due = -inf\n            elif",
        "                entry.due = entry.until = entry.last = -inf\n            elif",
        "cache::a_value_is_read_while_it_is_renewed",
    ),
    Fault(
        "a version is asked for once",
        "cache/refresh_ahead",
        "if self._least(key) < version:",
        "if True:",
        "cache::a_version_is_renewed_once_though_it_cannot_be_loaded",
    ),
    Fault(
        "an edit of what was seen is compared with what is there",
        "merchants/admin",
        "if stamp is not None and seconds(row.updated_at) != stamp:",
        "if False:",
        "admin::an_edit_of_what_was_seen_is_refused",
    ),
    Fault(
        "an import is audited in its transaction",
        "merchants/store",
        "            if by is not None:\n                write(connection, notes,",
        "        with self._engine.begin() as connection:\n            if by is not None:\n                write(connection, notes,",
        "admin::cannot_be_audited",
    ),
    Fault(
        "secrets are revealed once that is audited",
        "merchants/admin",
        "            notes = [Note(REVEAL, row.id) for row, auth in found if auth != NONE]\n            self._write(connection, notes, by)",
        "            pass",
        "admin::cannot_be_audited",
    ),
    Fault(
        "a removal leaves its stamp",
        "merchants/admin",
        "note_removal(connection, merchant_id, stamp.timestamp())",
        "pass",
        "admin::a_removal_and_a_later_import",
    ),
    Fault(
        "an edit's stamp is above those of removed rows",
        "merchants/store",
        "next_stamp(connection, edits, self._clock, removals)",
        "next_stamp(connection, edits, self._clock)",
        "admin::a_removal_and_a_later_import",
    ),
    Fault(
        "removals are forgotten after a day",
        "merchants/removed",
        "_removed_at < stamp - KEPT",
        "_removed_at < stamp - 10 * KEPT",
        "admin::removals_are_kept_for_a_day",
    ),
    Fault(
        "a removal is seen at the next poll",
        "merchants/removed",
        "_removed_at > stamp)",
        "_removed_at < 0)",
        "admin::a_removal_and_a_later_import",
    ),
    Fault(
        "a removed record is loaded once",
        "merchants/directory",
        "loaded |= {each: Loaded(None, stamp) for each, stamp in removed.items()}",
        "pass",
        "admin::loaded_once",
    ),
    Fault(
        "a pause by the gateway is audited once",
        "merchants/store",
        "if not merchant.paused:",
        "if True:",
        "admin::a_pause_by_the_gateway",
    ),
    Fault(
        "secrets that cannot be opened are not checked",
        "merchants/admin",
        "if isinstance(merchant.auth, UnreadableCredentials):  # they",
        "if False:  # they",
        "admin::left_to_others",
    ),
    Fault(
        "a pattern in what is searched for is text",
        "merchants/search",
        "part.lower(), autoescape=True",
        "part.lower(), autoescape=False",
        "search::a_part_of_the_id",
    ),
    Fault(
        "a catalog's edit is no record's",
        "merchants/edits",
        "select 1, merchant_id, updated_at from catalogs",
        "select 0, merchant_id, updated_at from catalogs",
        "edits::an_edit_is_seen_at_the_next_poll",
    ),
    Fault(
        "a poll reads removals",
        "merchants/edits",
        "from removed_merchants where removed_at > {since}",
        "from removed_merchants where removed_at > {since} + 1e9",
        "admin::a_removal_and_a_later_import",
    ),
]

if __name__ == "__main__":
    try_all(FAULTS, "merchants")
