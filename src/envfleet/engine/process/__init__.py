"""Shards in worker processes: starting them, talking to one, knowing that one has ended."""
