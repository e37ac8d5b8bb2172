"""KV caches: eviction, preallocation, re-rotation, key positions, and what a cache must be to fit a call."""
