"""Run folders that nobody has trained: what tests of the report read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PLAN = {"backend": "process", "workers": 2, "caller_steps": True, "reason": "9 us per step"}
PARTS = {"env": 0.03, "policy": 0.003, "videos": 0.001, "collector": 0.004, "update": 0.012}
LOSSES = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "explained_variance")


def metrics(
    rows: int, seed: int = 0, *, episodes: bool = True, step: int = 256, late: float = 4.0
) -> dict[str, Any]:
    """Columns as a training writes them; ``late`` moves the moment when it has learnt."""
    generator = np.random.default_rng(seed)
    steps = step * np.arange(1, rows + 1)
    mean = 500 / (1 + np.exp(late - 10 * steps / steps[-1])) + generator.normal(0, 3, rows)
    columns: dict[str, Any] = {
        "step": steps,
        "restarts": np.zeros(rows),
        "n": np.minimum(100, steps // 64),
    }
    for name in ("return", "length"):
        for key, factor in {"mean": 1.0, "p5": 0.5, "p95": 1.5}.items():
            columns[f"{name}_{key}"] = mean * factor if episodes else np.full(rows, np.nan)
    columns |= {f"loss/{name}": generator.normal(0, 1, rows) for name in LOSSES}
    columns |= {f"time/{k}": v * np.exp(generator.normal(0, 0.1, rows)) for k, v in PARTS.items()}
    columns["time/steps_per_second"] = step / sum(columns[f"time/{name}"] for name in PARTS)
    return columns


def make_run(
    folder: Path,
    columns: dict[str, Any] | None = None,
    *,
    videos: dict[str, int] | None = None,
    plan: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A folder with a config, these columns and GIF videos (name: step)."""
    folder.mkdir(parents=True)
    settings = {"env_id": "CartPole-v1", "seed": 0, "total_steps": 1000, "learning_rate": 0.001}
    told = {"config": settings | config, "options": {"backend": "auto", "record_every": 0}}
    (folder / "config.json").write_text(json.dumps(told))
    if plan:
        (folder / "plan.json").write_text(json.dumps(plan))
    if columns is not None:
        table = np.array(list(columns.values()), np.float64).T.tolist()
        lines = [",".join(columns), *(",".join([str(int(r[0])), *map(repr, r[1:])]) for r in table)]
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    for name, step in (videos or {}).items():
        add_video(folder, name, step)
    return folder


def add_video(folder: Path, name: str, step: int, *, padding: int = 0) -> None:
    """A GIF of two frames, and its line in videos.jsonl."""
    (folder / "renders").mkdir(exist_ok=True)
    frames = [Image.new("RGB", (120, 80), colour) for colour in ("navy", "orange")]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=200, loop=0)
    (folder / "renders" / name).write_bytes(out.getvalue() + bytes(padding))
    with (folder / "videos.jsonl").open("a") as file:
        # Absolute, as it was where the run was trained; the folder has moved since.
        file.write(json.dumps({"step": step, "path": f"/elsewhere/renders/{name}"}) + "\n")
