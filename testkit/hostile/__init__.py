"""Servers that do what merchants' servers do: scripted peers on raw sockets.

- ``catalogue``: what they do, and the class of what must come of it
- ``peer``: one that does one thing to every connection
- ``certificates``: who they say they are
- ``client``: all of them in a process of their own, for a load test
"""
