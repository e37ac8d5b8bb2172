"""Patch a loaded model and undo it: swap classes, prove the effect, or roll back.

Read in this order:

1. `patch`: the whole patch, from the call to the proof. `state`: the record of a patch, and where a model stores it.
2. `preconditions`, `host_config`, `weights`: refused models. `layer_schemes`: lengths, and the scheme of each layer.
3. `swap`: classes, hooks and parameters. `patched_config`, `config_guard`: the configuration, in memory and on disk.
4. `proof`: the proof of effect. `expected_effect`, `layer_run`, `ablation`, `reference_attention`: its parts.
5. `set_factor`: change the lengths of a patch. `offloading`, `float32`, `batching`, `text_limits`: other adjustments.
6. `atomic_save`: save a patched model. `scheme_config`, `model_card`, `peft_sidecar`, `code_bundle`: the parts of a
   saved model. `hf_posenc.checkpoints` reads them.
"""
