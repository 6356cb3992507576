"""Training: PPO, its presets, checkpoints that resume exactly, and a folder per run."""
