"""Attention kernels, one file each, and which of them a device has."""
