"""Training recipes: positions are drawn or shifted in training mode."""
