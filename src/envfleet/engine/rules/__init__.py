"""The arithmetic of a fleet, without processes: what may be asked, what follows, which engine."""
