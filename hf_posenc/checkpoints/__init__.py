"""Load, save, export and share patched checkpoints and PEFT adapters.

Read in this order:

1. `load`: from a name to a model. `model_name`, `hub`: find it. `checkpoint`: its files, checked by `validate` and
   `config`. `restore`: build the model, patched before its weights are loaded. `auto`, `bundled`: loading by others.
2. `peft`: load adapters, and compare them with the base. `adapter_folder`: read their files. `peft_hooks`,
   `peft_methods`: the same checks when other programs call PEFT.
3. `export`: all formats. `native_parameters`, `static_rotation`: a scheme as RoPE parameters. `plain_config`: compare
   them with the scheme. `plain_checkpoint`, `other_class`, `gguf_file`, `onnx_file`: write. `readers`: other engines.
4. `merge`: merge an adapter into its base.

`hf_posenc.patching.atomic_save` writes patched checkpoints.
"""
