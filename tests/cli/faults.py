"""Faults in the command line, each with the test that must find it; see ``test_planted_faults.py``.

``python -m tests.cli.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "an order is revealed once the audit has a line of it",
        "cli/orders",
        "        if reveal:\n            from pos_gateway.audit",
        "        if False:\n            from pos_gateway.audit",
        "orders_command::nothing_is_revealed",
    ),
    Fault(
        "a dead letter is revealed once the audit has a line of it",
        "cli/dlq",
        "    if reveal:\n        from pos_gateway.audit",
        "    if False:\n        from pos_gateway.audit",
        "dlq_command::nothing_that_is_in_an_order",
    ),
    Fault(
        "doctor counts secrets that no key opens",
        "merchants/store",
        "if not self._vault.knows(key_id)",
        "if False",
        "doctor_command::secrets_that_no_key_opens",
    ),
    Fault(
        "no secret is taken from the command line",
        "cli/merchants_set",
        "if is_secret(name) and is_given and",
        "if False and",
        "merchants_by_hand::on_the_command_line",
    ),
    Fault(
        "what is no field's name is not repeated",
        "merchants/assignments",
        "if not _NAME.fullmatch(name):",
        "if False:",
        "merchants_by_hand::a_misplaced_secret",
    ),
    Fault(
        "a file's name may be a secret",
        "cli/merchants_set",
        "{name}: the file after @ cannot be read: {why}",
        "{name}: {source} cannot be read: {why}",
        "merchants_by_hand::a_misplaced_secret",
    ),
    Fault(
        "a secret that is asked for is hidden",
        "cli/merchants_set",
        "hide_input=True",
        "hide_input=False",
        "merchants_by_hand::typed_is_hidden",
    ),
    Fault(
        "the audit has no secret",
        "merchants/changes",
        "if any(isinstance(each, SecretStr) for each in (was, is_now)) or name in _LONG:",
        "if name in _LONG:",
        "merchants_by_hand::a_new_secret_is_in_no_output",
    ),
    Fault(
        "sealed secrets stay as they are",
        "merchants/masked",
        "    if auth == masked_auth(before.auth):\n",
        "    if False:\n",
        "merchants_by_hand::without_the_secret_or_its_key",
    ),
    Fault(
        "an editor sees no secret",
        "merchants/masked",
        "values.update({name: MASK for name in values if fields.get(name)})",
        "values.update({name: str(values[name]) and before for name in values for before in [auth.reveal().get(name)] if fields.get(name)})",
        "merchants_by_hand::shows_no_secret",
    ),
    Fault(
        "a mask is the secret that was there",
        "merchants/masked",
        "values[name] = known[name]",
        "pass",
        "merchants_by_hand::a_secret_to_one_with_two",
    ),
    Fault(
        "an edit that leaves out paused resumes nothing",
        "merchants/masked",
        'others = {"paused": before.paused, **edited}',
        "others = {**edited}",
        "merchants_by_hand::but_paused_stays",
    ),
    Fault(
        "the file is gone after the edit",
        "cli/merchants_set",
        'with TemporaryDirectory(prefix="pos-gateway-") as folder:',
        'for folder in [__import__("tempfile").mkdtemp()]:',
        "merchants_by_hand::shows_no_secret",
    ),
    Fault(
        "sealed secrets are opened for their merchant",
        "merchants/records",
        "opened = vault.open(auth, whose=merchant_id)",
        'opened = vault.open(auth, whose="m-1")',
        "merchants_by_hand::open_for_their_merchant",
    ),
    Fault(
        "an export is sealed",
        "merchants/admin",
        '({"auth": row.auth} if "sealed" in row.auth else {})',
        '({"auth": self._store.of_row(row).auth.reveal()} if "sealed" in row.auth else {})',
        "merchants_by_hand::an_export_is_what_import_takes",
    ),
    Fault(
        "revealing needs an operator",
        "cli/merchants_export",
        "if operator is None:",
        "if False:",
        "merchants_by_hand::not_revealed_without",
    ),
    Fault(
        "what is the same is not touched",
        "merchants/store",
        "if was is None or changed:",
        "if True:",
        "merchants_by_hand::new_or_different",
    ),
    Fault(
        "a merchant that was paused by itself stays paused",
        "merchants/admin",
        "why[each].details != details",
        "False",
        "merchants_by_hand::but_for_what_was_paused_by_itself",
    ),
    Fault(
        "the last pause counts",
        "merchants/pauses",
        "func.max(audit.c.id)",
        "func.min(audit.c.id)",
        "merchants_by_hand::paused_again_by_itself",
    ),
    Fault(
        "open orders keep their merchant",
        "merchants/admin",
        "if still_open and not force:",
        "if False:",
        "merchants_by_hand::by_force_alone",
    ),
    Fault(
        "no two orders of a merchant have one id at the POS",
        "administration/resolve",
        "            if external_id is not None:\n",
        "            if False:\n",
        "orders_command::another_order_is_refused",
    ),
    Fault(
        "an operator's decision is for the order as it was shown",
        "administration/resolve",
        "if self._since is not None and",
        "if False and",
        "orders_command::a_decision_is_about_the_order_as_it_was",
    ),
    Fault(
        "a pulled catalog is written when that was asked for",
        "cli/catalog_pull",
        "        if not is_applied:",
        "        if False:",
        "catalog_pull::a_person_is_asked or the_program_shows",
    ),
    Fault(
        "a pull does not overwrite a catalog that was written meanwhile",
        "cli/catalog_pull",
        "if catalogs.get(merchant.id) != before:",
        "if False:",
        "catalog_pull::another_operator_s_import",
    ),
    Fault(
        "a pulled catalog is bounded",
        "cli/catalog_pull",
        "if len(after) > MAX_ENTRIES:",
        "if False:",
        "catalog_pull::not_whole",
    ),
]

if __name__ == "__main__":
    try_all(FAULTS, "cli")
