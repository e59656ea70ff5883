"""Concurrency limits and breakers shared by all pods, through Redis.

Each pod holds an allotment of a merchant's permits and decides against it by itself: no order
waits for Redis unless its merchant's allotment is used up.
"""
