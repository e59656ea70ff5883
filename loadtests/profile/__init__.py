"""Where an order's CPU goes: the green worker under load, sampled, by part and as a flame graph.

``python -m loadtests.profile`` (``make profile``). ``recording`` runs the worker under py-spy,
``parts`` reads what was sampled and decides the part of each sample, ``flame`` draws.
"""
