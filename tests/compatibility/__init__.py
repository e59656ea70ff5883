"""What an earlier release wrote, this one reads; and what this one makes, an earlier one works on.

``0.0.0-5eb95ff`` is the code of that commit, one schema before 0.1.0 was recorded.
"""
