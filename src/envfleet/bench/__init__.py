"""Engines side by side, against the limit: the same envs looped over without any communication."""
