"""One forward pass: what a call of a patched model is given, from the base model down to the kernel.

Read in this order:

1. `forward_hook`: the stages of a call; `forward_call`: the value that they hand on.
2. `validate_inputs`, `attention_masks`, `position_ids`, `texts_in_rows` (`text_borders`): one stage each.
3. `positions`: the `ForwardContext` of a pass, and the positions that one layer sees. `current_forward`: where no
   keyword reaches a layer. `host_calls`: what differs between versions of transformers.
4. `layer`, `attention`: one layer. `keys_in_reach`: its mask. `call_plan` and `shared_terms`: what all layers share.
5. `rotate_qk`, `rotate_decode`: queries and keys.
6. `engine_backend`: the host's own attention function or the engine; then `hf_posenc.attention.dispatch`.
7. `paged` (`paged_support`), `placement`: continuous batching and several devices.
"""
