"""Stable-Baselines3's VecEnv on our fleets; workers import this package without that library."""
