"""Asking a fleet for images: what can be recorded, one frame, what to do where there is none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from gymnasium.vector import VectorEnv

from envfleet.errors import WorkerDied, name_exit
from envfleet.record.frames import Frame, as_frame
from envfleet.record.timing import natural_fps

_OPENGL = re.compile(r"\b(mujoco|mjr_\w+|glfw\w*|opengl|egl|osmesa)\b", re.IGNORECASE)
_PYGAME = re.compile(r"\bpygame\b.*\binstall|no module named 'pygame", re.IGNORECASE | re.DOTALL)


def check_renders(envs: VectorEnv[Any, Any, Any]) -> None:
    """Refuse a fleet whose envs do not render images.

    Raises:
        ValueError: its render mode is another one.
    """
    if envs.render_mode != "rgb_array":
        raise ValueError(
            f"the envs have render_mode={envs.render_mode!r} and give no images: build them with "
            "render_mode='rgb_array'; an env of your own takes render_mode in its constructor and "
            "keeps it in self.render_mode."
        )


def check_video(build: Callable[[], Any]) -> None:
    """Have a fleet of one env, in a process of its own, reset and render once.

    A crash inside ``render`` ends that process and nothing else.

    Args:
        build: builds the fleet.

    Raises:
        ValueError: there is no frame; says in one line what to do.
    """
    try:
        envs = build()
    except TypeError as error:
        if not re.search("render_mode|takes no arguments", str(error)):
            raise
        raise ValueError(
            "videos need an env whose constructor takes render_mode='rgb_array' and keeps it in "
            f"self.render_mode ({error})."
        ) from error
    with envs:
        check_renders(envs)
        envs.reset(seed=0)
        try:
            take_frame(envs, engine_of(envs), 0)
        except Exception as error:
            raise refusal(error) from error


def engine_of(envs: Any) -> Any:
    """The fleet of ours that some wrappers are around, if it is one."""
    while envs is not None and not hasattr(envs, "keep_final_frames"):
        envs = getattr(envs, "env", None)
    return envs


def take_frame(envs: Any, engine: Any, env: int) -> Frame:
    """What one env shows; on other engines than ours all of them have to render.

    Raises:
        Exception: the env's own, or a ValueError for what is no image.
    """
    return as_frame(engine.render_on([env])[0] if engine is not None else envs.render()[env])


def can_go_on(engine: Any) -> bool:
    """Whether a fleet can still be stepped after an error."""
    try:
        if engine is not None:
            engine.render_on([])
    except Exception:  # noqa: BLE001 - broken, closed or busy: it cannot
        return False
    return True


def fps_of(envs: Any) -> float:
    """How many steps of these envs make a second of the game."""
    return natural_fps(envs.metadata, _spec_of(envs))


def _spec_of(envs: Any) -> Any:
    """The first env's spec, wrappers included, as far as it can be had without harm."""
    engine = engine_of(envs)
    try:
        if engine is not None:
            return engine.call_on([0], "spec")[0]
        return envs.unwrapped.envs[0].spec
    except Exception:  # noqa: BLE001 - a spec may hold anything, and an env may have none
        return getattr(envs, "spec", None)


def refusal(error: Exception) -> ValueError:
    """Why there are no videos, and what helps, in one line."""
    text = f"{type(error).__module__}.{type(error).__name__}: {error}"
    if isinstance(error, WorkerDied):
        return ValueError(
            f"videos are not possible here: the process of env {error.envs[0]} "
            f"{name_exit(error.exitcode)} in render(). Without a display, MuJoCo needs the "
            f"environment variable {_mujoco_gl()}, and other envs that draw with OpenGL need "
            "xvfb-run."
        )
    if _PYGAME.search(text):
        return ValueError("videos of this env need pygame: pip install 'envfleet[train]'")
    told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if _OPENGL.search(text):
        return ValueError(
            "videos are not possible here: without a display, MuJoCo needs the environment "
            f"variable {_mujoco_gl()} (render() raised {told})."
        )
    return ValueError(
        f"videos are not possible: render() failed with {told}. Mend it, or ask for no videos."
    )


def _mujoco_gl() -> str:
    """The setting that has not been tried yet."""
    return "MUJOCO_GL=osmesa" if os.environ.get("MUJOCO_GL") == "egl" else "MUJOCO_GL=egl"
