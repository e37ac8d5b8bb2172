"""The schemes: one idea, one file. `hf_posenc.registry` knows them by name; nothing is imported before it is asked for."""
