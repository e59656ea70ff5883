"""Alerts: a webhook for what needs a person (docs/alerts.md).

- ``condition``: what can be wrong; ``looking``: what is, from what the operations page shows
- ``rules``: which alerts begin, go on and end, and what is sent. Pure: no clock, no database
- ``store``: the alerts' rows, and the claim of the one server that sends
- ``message``, ``sender``: a message by the Standard Webhooks specification, and its exchange
- ``watch``: the thread of ``pos-gateway serve``
"""
