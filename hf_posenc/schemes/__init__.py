"""The schemes: one idea, one file. `hf_posenc.schemes.registry` knows them by name and imports what is asked for."""
