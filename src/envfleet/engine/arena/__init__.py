"""Shared memory: arena (a fleet's), its memory, layout and views; signals (caller and worker)."""
