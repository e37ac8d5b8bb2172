"""What the findings share: claims and their verdict, and ways to measure a variant."""
