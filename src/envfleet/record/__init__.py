"""Videos of envs: chosen ones while training, or a whole fleet; encoded in a process of its own."""
