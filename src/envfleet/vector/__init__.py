"""The public fleets: ``gymnasium.vector.VectorEnv`` classes, and ``make`` that picks one."""
