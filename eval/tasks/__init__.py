"""lm-eval tasks for long-context evaluation."""
