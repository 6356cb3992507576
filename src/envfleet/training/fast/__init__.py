"""The same PPO by hand for small networks, in NumPy on the parameters' own memory."""
