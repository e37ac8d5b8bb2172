"""Published findings, one file each; a file is registered by its line in `hf_posenc.insight.findings.catalogue`."""
