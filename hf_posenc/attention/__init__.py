"""The attention engine: compute attention of queries, keys, values and `Terms` by the cheapest exact route.

It is independent of schemes and models.
"""
