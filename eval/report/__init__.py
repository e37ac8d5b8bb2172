"""Results as tables, plots, JSON and one HTML page."""
