"""Patch a loaded model and undo it: swap classes, probe the effect, prove it, or roll back.

Read in this order:

1. `patch`: from the call to the proof. `state`: the value that it fills, and where a model keeps it.
2. `preconditions`, `host_config`, `weights`: what is refused. `layer_schemes`: lengths, and a scheme for each layer.
3. `swap`: classes, hooks and parameters. `patched_config`, `config_guard`: the configuration, live and on disk.
4. `proof`: the verdict; `expected_effect`, `layer_run`, `ablation`, `reference_attention`: what it is made of.
5. `set_factor`: a patch with other lengths. `offloading`, `float32`, `batching`, `text_limits`: what else must follow.
6. `atomic_save`: what a patched model writes; `scheme_config`, `model_card`, `peft_sidecar`, `code_bundle`, `push`: its
   parts. `hf_posenc.checkpoints` reads them.
"""
