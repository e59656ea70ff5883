"""The operations page, at ``/``: what is wrong, for whom, since when, and what can be done.

``app.py`` is the application: sessions, routes, errors. A view is one file in ``views/`` with its
template, and is listed in ``listed.py``; docs/page.md says how one is added.
"""
