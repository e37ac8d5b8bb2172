"""The attention engine: given queries, keys, values and `Terms`, the cheapest exact way to mix. Knows no scheme, no model."""
