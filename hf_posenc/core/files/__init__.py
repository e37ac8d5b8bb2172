"""Files: atomic and staged writes, validated reads, safe names."""
