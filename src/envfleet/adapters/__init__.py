"""Other programs' interfaces, by name, on our fleets; what needs torch is imported when asked for.

``SyncVecEnv`` is here; XuanCe's classes are in ``envfleet.adapters.xuance``. See docs/seeds.md.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from envfleet.adapters.sync_vec_env.env import SyncVecEnv

__all__ = ["SyncVecEnv"]


def __getattr__(name: str) -> _typing.Any:
    if name != "SyncVecEnv":
        raise AttributeError(f"module 'envfleet.adapters' has no attribute {name!r}")
    try:
        from envfleet.adapters.sync_vec_env.env import SyncVecEnv  # noqa: PLC0415 - needs torch
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "PIL"):
            raise
        raise ImportError(
            f"envfleet.adapters.{name} needs {error.name}: pip install 'envfleet[train]'."
        ) from error
    globals()[name] = SyncVecEnv
    return SyncVecEnv


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
