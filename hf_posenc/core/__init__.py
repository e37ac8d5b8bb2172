"""Values and pure mathematics that every other package builds on; torch only."""
