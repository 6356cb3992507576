"""Restarts: a worker that died, or an env that raised, is replaced and training goes on.

    budget     how often that may happen
    history    what the envs were told and have shown: repeated to those that take their place
    replacing  puts a new worker or env in place, within the budget
    mending    what of it the fleet's answers say: transitions that were cut off

What a fleet needs of it is ``Mender``.
"""
