"""Other programs' interfaces, by name, on our fleets; what needs a library is imported when asked.

``SyncVecEnv`` (docs/seeds.md), ``SB3VecEnv`` and ``TianshouVectorEnv`` (docs/clients.md) are here,
XuanCe's classes in ``envfleet.adapters.xuance``.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from envfleet.adapters.sb3.vec_env import SB3VecEnv
    from envfleet.adapters.sync_vec_env.env import SyncVecEnv
    from envfleet.adapters.tianshou.vector_env import TianshouVectorEnv

__all__ = ["SB3VecEnv", "SyncVecEnv", "TianshouVectorEnv"]

_LAZY = {
    "SB3VecEnv": ("sb3.vec_env", "sb3", ("stable_baselines3", "torch")),
    "TianshouVectorEnv": ("tianshou.vector_env", "tianshou", ("tianshou", "torch")),
    "SyncVecEnv": ("sync_vec_env.env", "train", ("torch", "PIL")),
}
"""Where a class is, the extra that it needs, and the packages of that extra that it imports."""


def __getattr__(name: str) -> _typing.Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'envfleet.adapters' has no attribute {name!r}")
    place, extra, packages = _LAZY[name]
    try:
        module = _importlib.import_module(f"envfleet.adapters.{place}")
    except ModuleNotFoundError as error:
        missing = str(error.name).split(".")[0]
        if missing not in packages:
            raise
        raise ImportError(
            f"envfleet.adapters.{name} needs {missing}: pip install 'envfleet[{extra}]'."
        ) from error
    globals()[name] = found = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
