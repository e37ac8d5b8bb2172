"""Results of evaluations: rows, comparisons, and the store of finished cells that makes comparisons resumable."""
