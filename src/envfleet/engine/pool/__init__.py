"""What runs in the caller: handle (one worker), doorbell (waiting), supervisor (all workers)."""
