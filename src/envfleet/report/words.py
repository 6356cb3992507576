"""Words: metrics and parts of the time by the names that people use, and what they mean."""

from __future__ import annotations

_LOSSES = {
    "policy_loss": ("Policy loss", "The clipped surrogate objective, negated."),
    "value_loss": ("Value loss", "Squared error of the critic's values."),
    "entropy": ("Entropy", "Of the policy: it falls as actions become certain."),
    "kl": ("KL divergence", "How far an update moves the policy."),
    "clipped": ("Clipped share", "Share of samples whose probability ratio was clipped."),
    "clip_fraction": ("Clipped share", "Share of samples whose probability ratio was clipped."),
    "explained_variance": (
        "Explained variance",
        "1: the critic predicts returns exactly; 0 or less: no better than their mean.",
    ),
    "grad_norm": ("Gradient norm", "Before clipping."),
    "steps": ("Gradient steps", "Per update; fewer where the target KL has ended one early."),
}
_PARTS = {
    "env": "envs",
    "policy": "policy",
    "videos": "videos",
    "collector": "collecting",
    "update": "learning",
    "evaluation": "evaluating",
}


def loss(key: str) -> tuple[str, str]:
    """Title and hint of a metric of the update."""
    return _LOSSES.get(key, (plain(key), ""))


def loss_order(key: str) -> int:
    """Known ones first, in the order above."""
    return list(_LOSSES).index(key) if key in _LOSSES else len(_LOSSES)


def part(key: str) -> str:
    """What seconds went into."""
    return _PARTS.get(key, key.replace("_", " "))


def plain(key: str) -> str:
    """A metric's name as a title."""
    text = key.rpartition("/")[2].replace("_", " ")
    return text[:1].upper() + text[1:]
