"""Limits and breakers that hold for all pods together, through Redis.

Each pod holds an allotment of a merchant's permits and decides against it by itself: no order
waits for Redis unless its merchant's allotment is used up. Redis Cluster is not supported: one
script looks at the keys of all pods.
"""
