"""The general adapter: any model of transformers whose attention goes through `AttentionInterface`."""
