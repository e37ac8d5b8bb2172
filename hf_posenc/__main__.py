"""``python -m hf_posenc``: the command line, where its script is not on the path."""

from hf_posenc.cli import main

if __name__ == "__main__":
    main()
