"""The plots that come with the package, by what they look at: codes, rotations, pairs, images."""
