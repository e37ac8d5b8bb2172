"""KV caches: eviction, preallocation, rotation at read, key positions, and checks that a cache fits a call."""
