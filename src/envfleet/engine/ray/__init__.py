"""A shard in a Ray actor: session (a hold on Ray), actor, shard, starting (placement)."""
