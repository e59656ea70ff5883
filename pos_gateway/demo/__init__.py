"""The gateway at work with nothing set up: ``pos-gateway demo``, ``pos-gateway demo --serve``.

- ``cast``: the merchants; ``gateway``: the worker among them, for both
- ``__main__``: a stream of orders, under a minute; ``screen``: what it shows; ``outcomes``,
  ``record``: what a backend knows of its orders, which load tests use, too
- ``serve``: the operations page, and orders of the user's own over HTTP; ``story``: what the page
  shows; ``guide``: what it prints; ``server_process``, ``server``: both ends of its HTTP server;
  ``shovel``: the messages between them
"""
