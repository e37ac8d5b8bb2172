"""The attention engine: given queries, keys, values and `Terms`, the cheapest exact way to mix.

It knows no scheme and no model.
"""
