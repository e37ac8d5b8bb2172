"""One forward pass of a patched model: from the arguments of the base model down to the attention kernel.

Read in this order:

1. `base_forward`: ``forward`` of a patched base model. `stages`: the stages of a call. `forward_call`: the value that
   each takes and returns. `host_calls`: differences between versions of transformers. `current_forward`: attributes of
   a patched base model.
2. `validate_inputs`, `attention_masks`, `position_ids`, `texts_in_rows` (`text_borders`): one stage each;
   `hf_posenc.cache.prepare` makes or checks the KV cache.
3. `positions`: the `ForwardContext` of a forward pass, and the positions that one layer sees.
4. `layer`, `attention`: one layer. `keys_in_reach`: its mask. `call_plan`, `shared_terms`: values that layers share.
5. `rotate_qk`, `rotate_decode`: rotation of queries and keys.
6. `engine_backend`: the model's own attention function or the engine; then `hf_posenc.attention.dispatch`.
7. `paged` (`paged_support`), `placement`: continuous batching and several devices.
"""
