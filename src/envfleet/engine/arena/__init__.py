"""Shared memory: layout (arithmetic), memory (the mapping), views (NumPy arrays on it)."""
