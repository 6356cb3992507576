"""What envs tell beside their observations, from an env's dict to what ``step`` returns.

env.step() ─► keeping   which infos are told at all, and what belongs to an episode's end
              packing   a shard's infos as columns, for the way to the caller
              board     the same columns in the arena, where all of them are floats
              merging   one dict of arrays for the fleet, as Gymnasium lays it out
              listing   or one dict per env
"""
