"""The arithmetic of a fleet, without processes: spaces, actions, seeding, autoreset, infos."""
