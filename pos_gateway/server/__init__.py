"""The HTTP server: takes orders from backends without AMQP, and serves their events.

One asyncio process without gevent, stateless, any number of them beside the workers. ``asgi.py`` is
the application: the routes that every order takes are plain ASGI, the others FastAPI's. ``site.py``
puts the components together, ``serving.py`` runs them.
"""
