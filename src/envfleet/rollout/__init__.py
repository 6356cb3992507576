"""From a fleet and an agent to tensors: collecting, advantages, statistics, evaluation (torch)."""
