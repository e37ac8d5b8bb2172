"""``python -m hf_posenc.cli`` is ``hf-posenc``."""

from hf_posenc.cli import main

main()
