"""Commands of ``hf-posenc``, one file each."""
