"""Load, save, export and share patched checkpoints and PEFT adapters.

Read in this order:

1. `load`: from a name to a model. `model_name`, `hub`: where it is; `checkpoint`: its files, checked by `validate` and
   `config`; `restore`: the model, patched before its weights come. `auto`, `bundled`: other ways in.
2. `peft`: adapters. `adapter_folder`: what is read; `adapter_checks`: what must fit; `peft_hooks`, `peft_methods`: the
   same where others call PEFT.
3. `export`: every format. `native_parameters`, `static_rotation`: a scheme in transformers' words; `plain_config`:
   compared; `plain_checkpoint`, `other_class`, `gguf_file`, `onnx_file`: written; `readers`: what engines make of it.
4. `merge`: an adapter and its base as one.

Writing a patched checkpoint is the work of `hf_posenc.patching.atomic_save`.
"""
