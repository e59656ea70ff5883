"""A POS and its adapter, unlike ``rest``: errors in 200s, no keys, decimal money, the key in the query.

``pos-gateway adapters new`` copies these files into a package of another name.
"""
