"""Tianshou's vector env on our fleets; workers import this package without that library."""
