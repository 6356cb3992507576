"""Native engines: an env's own batched implementation behind the interface of our fleets."""
