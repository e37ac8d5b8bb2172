"""The general adapter, for any model of transformers whose attention can be intercepted."""
