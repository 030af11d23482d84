"""Kernels in Triton: each module is loaded where Triton is installed and a GPU is used."""
