"""Run ``hf-posenc`` as ``python -m hf_posenc.cli``."""

from hf_posenc.cli import main

main()
