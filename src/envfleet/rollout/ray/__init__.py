"""Rollouts from Ray actors: collector (the driver's side), actor, parts (of a whole rollout)."""
