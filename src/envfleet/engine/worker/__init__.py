"""What serves a shard's envs: server, host, episodes, turns; and the worker's loop and guard."""
