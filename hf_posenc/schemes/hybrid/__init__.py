"""Schemes that leave positions out, in all layers or in some."""
