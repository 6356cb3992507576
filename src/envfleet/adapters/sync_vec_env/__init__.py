"""SyncVecEnv: envs, an agent and their last rollout in one object, as in docs/seeds.md."""
