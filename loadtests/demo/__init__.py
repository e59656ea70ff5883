"""A minute of the gateway at work: ``python -m loadtests.demo``, or ``pos-gateway demo``."""
