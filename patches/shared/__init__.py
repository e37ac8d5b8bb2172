"""Parts that several adapters use."""
