"""All shards of a fleet, of any kind: asked together, waited for together, stopped together."""
