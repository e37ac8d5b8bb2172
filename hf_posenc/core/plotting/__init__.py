"""Plots as files: matplotlib figures and SVG."""
