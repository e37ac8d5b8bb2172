"""Compare schemes under one budget, resumably."""
