"""The adapters: where each model keeps position. One file a model, no mathematics."""
