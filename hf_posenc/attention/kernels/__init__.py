"""Attention kernels, one file each, and their choice by device."""
