"""What the engines that serve a checkpoint compute from its configuration, one small file an engine."""
