"""Look at schemes and models: recommendations, benchmarks, lessons, plots, probes, properties."""
