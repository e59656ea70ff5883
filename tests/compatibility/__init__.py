"""This release reads what an earlier one wrote, and an earlier one works on what this one wrote.

``0.0.0-5eb95ff`` is the code of that commit, one schema before 0.1.0 was recorded.
"""
