"""Training recipes: positions are drawn or shifted while training lasts."""
