"""What runs in a worker: host (owns the envs), loop (commands), guard (signals, randomness)."""
