"""Where an order's CPU goes: the green worker under load, sampled, by part and as a flame graph.

``python -m loadtests.profile`` (``make profile``). ``recording`` runs the worker under py-spy,
``parts`` reads the samples and decides the part of each, ``flame`` draws. ``order_path`` lists the
functions that every order calls, which ``counting`` counts in the worker.
"""
