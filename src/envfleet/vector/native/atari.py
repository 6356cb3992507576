"""ALE's C++ AtariVectorEnv as a native engine: its arguments, seeds, masks and threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.engine.cores import usable_cores
from envfleet.engine.rules.seeding import env_seeds, plan_reset
from envfleet.vector.native.engine import NativeVectorEnv
from envfleet.vector.native.infos import with_masks

NAME = "ale_py.vector_env:AtariVectorEnv"
OLDEST = (0, 12, 1)
"""Older ones wait for ever in a reset with a mask."""

OURS = {
    "num_stack": "stack_num",
    "frame_skip": "frameskip",
    "fire_reset": "use_fire_reset",
    "clip_reward": "reward_clipping",
    "max_pool": "maxpool",
}
"""Words of ``AtariEnv`` that have another name in ALE; ``image_size`` and ``obs_type`` are split
into ``img_height``, ``img_width`` and ``grayscale``."""


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: _is_whole(value) and value >= least


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


@dataclass(frozen=True)
class _Word:
    """What may be said for one argument; ALE itself takes everything, and hangs on some."""

    fits: Callable[[Any], bool]
    says: str


_FLAG = _Word(_is_flag, "True or False")
_COUNT = _Word(_whole(1), "an integer of 1 or more")
_SHARE = _Word(lambda value: 0 <= value <= 1, "between 0 and 1")
_WORDS = {
    "game": _Word(lambda value: isinstance(value, str), "a ROM's name"),
    "thread_affinity_offset": _Word(_whole(-1), "an integer of -1 (anywhere) or more"),
    "max_num_frames_per_episode": _COUNT,
    "repeat_action_probability": _SHARE,
    "full_action_space": _FLAG,
    "continuous": _FLAG,
    "continuous_action_threshold": _SHARE,
    "img_height": _COUNT,
    "img_width": _COUNT,
    "grayscale": _FLAG,
    "stack_num": _COUNT,
    "frameskip": _Word(_whole(1), "an integer of 1 or more (it cannot draw it from a range)"),
    "maxpool": _FLAG,
    "noop_max": _Word(_whole(0), "an integer of 0 or more"),
    "episodic_life": _FLAG,
    "reward_clipping": _FLAG,
    "use_fire_reset": _FLAG,
}
_CANNOT = {
    "batch_size": "partial batches",
    "life_loss_info": (
        "life_loss_info: episodes would end that next-step autoreset does not begin anew"
    ),
    "num_threads": "num_threads: it is workers= here",
    "render_mode": "rendering",
    "mode": "game modes",
    "difficulty": "difficulties",
}


def is_atari(spec: EnvSpec) -> bool:
    """Whether ALE's vector env can play this id: ``ALE/...-v5``, or a ``NoFrameskip`` one."""
    return spec.entry_point == "ale_py.env:AtariEnv" and (
        spec.vector_entry_point == NAME or spec.kwargs.get("frameskip") == 1
    )


def atari_arguments(spec: EnvSpec, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of AtariVectorEnv from an id's own and those given, in ALE's words or ours.

    A ``NoFrameskip`` id leaves skipping to who prepares its frames, which is ALE here: 4, unless
    ``given`` says otherwise.

    Raises:
        TypeError: an argument that it does not have, or one given in both words.
        ValueError: a value that it cannot honour.
    """
    game = str(spec.kwargs["game"])
    said = _in_their_words(spec.kwargs, game)
    if spec.vector_entry_point is None:
        said["frameskip"] = 4
    words = _in_their_words(given, game)
    if "game" in words:
        raise TypeError(f"game: {spec.id} says which game it is")
    said.update(words)
    for word in said:
        if word in _CANNOT:
            raise ValueError(f"{NAME} cannot do {_CANNOT[word]}. Take backend='process'.")
        if word not in _WORDS:
            known = ", ".join(sorted({*_WORDS, *OURS, "image_size", "obs_type"} - {"game"}))
            raise TypeError(f"{NAME} has no argument {word!r}; it has {known}")
    for word, value in said.items():
        try:
            fits = _WORDS[word].fits(value)
        except TypeError:
            fits = False
        if not fits:
            raise ValueError(f"{NAME}: {word} must be {_WORDS[word].says}, got {value!r}")
    # ALE looks at the exact type.
    return {w: v.item() if isinstance(v, np.generic) else v for w, v in said.items()}


def _in_their_words(given: dict[str, Any], game: str) -> dict[str, Any]:
    words: dict[str, Any] = {}
    for word, value in given.items():
        for theirs, part in _translated(word, value, game).items():
            if theirs in words:
                raise TypeError(f"{theirs}: given twice, in ALE's word and in ours")
            words[theirs] = part
    return words


def _translated(word: str, value: Any, game: str) -> dict[str, Any]:
    """An argument in ALE's words."""
    if word == "image_size":
        if value is None:
            value = _screen_size(game)
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(f"image_size must be (height, width) or None, got {value!r}")
        return {"img_height": value[0], "img_width": value[1]}
    if word == "obs_type":
        if value not in ("grayscale", "rgb"):
            raise ValueError(f"{NAME}: obs_type must be 'grayscale' or 'rgb', got {value!r}")
        return {"grayscale": value == "grayscale"}
    if word == "repeat_action_probability" and value is None:
        return {}
    return {OURS.get(word, word): value}


def _screen_size(game: str) -> tuple[int, int]:
    import ale_py  # noqa: PLC0415 - an extra
    from ale_py import roms  # noqa: PLC0415

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path: Any = roms.get_rom_path(game)
    ale.loadROM(path)
    height, width = ale.getScreenDims()
    return int(height), int(width)


class AtariNativeVectorEnv(NativeVectorEnv):
    """ALE's C++ engine: (stack, height, width), or (3·stack, height, width) in colour.

    Args:
        num_envs: how many.
        autoreset_mode: next-step or same-step.
        threads: how many; by default as many as there are cores for this process.
        arguments: of AtariVectorEnv, as ``atari_arguments`` says.

    Raises:
        ImportError: ale-py is not installed, or too old.
        ValueError: autoreset mode "Disabled", more threads than the machine has cores, or a game
            that is not there.
    """

    def __init__(
        self,
        num_envs: int,
        autoreset_mode: AutoresetMode,
        threads: int | None,
        arguments: dict[str, Any],
    ) -> None:
        _check_version()
        if autoreset_mode == AutoresetMode.DISABLED:
            self._refuse("autoreset_mode='Disabled': it always resets envs that ended")
        most = os.cpu_count() or 1
        if threads is None:
            threads = usable_cores()
        elif not _is_whole(threads) or threads < 1:
            raise ValueError(f"`workers` must be a positive integer or None, got {threads!r}.")
        elif threads > most:
            self._refuse(f"workers={threads}: it has at most a thread per core, {most} here")
        self.threads = min(int(threads), num_envs)
        build = partial(_build, num_envs, autoreset_mode, self.threads, arguments)
        super().__init__(build, autoreset_mode, NAME)
        if not arguments.get("grayscale", True):
            stack, height, width, colours = self.single_observation_space.shape or ()
            shape = (stack * colours, height, width)
            self.single_observation_space = Box(0, 255, shape, np.uint8)
            self.observation_space = batch_space(self.single_observation_space, num_envs)

    _name = NAME

    @property  # type: ignore[misc]
    def np_random(self) -> NoReturn:  # type: ignore[override]
        """ALE does not show its generators."""
        raise AttributeError

    @property
    def np_random_seed(self) -> NoReturn:
        """ALE does not show its generators."""
        raise AttributeError

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``: each begins a new game.

        Args:
            seed: env ``i`` gets ``seed + i``, or entry ``i`` of a list; from 0 to 2**31 - 1.
            options: nothing but ``reset_mask``.

        Returns:
            The observations of all envs, and the infos, whose masks show who was reset.

        Raises:
            ValueError: a seed or an option that ALE cannot honour; or a mask in the first reset.
            TypeError: a seed or a mask that is none.
        """
        self._check_is_mine()
        plan = plan_reset(env_seeds(seed, self.num_envs), options, self.num_envs)
        if any(plan.options):
            self._refuse("options of a reset other than 'reset_mask'")
        for given in plan.seeds:
            if given is not None and not 0 <= given < 2**31:
                self._refuse(f"seed {given}: it takes 0 to 2**31 - 1")
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[plan.env_ids] = True
        if self._waits_for_reset and not mask.all():
            raise ValueError(
                f"the envs {self._waits_for_reset}: all of them must be reset now, leave out "
                "options['reset_mask']."
            )
        if "interrupted" in self._waits_for_reset:
            # Answers of the broken call may be under way and would be taken for those of the next.
            self._envs = self._build()
        self._waits_for_reset = "were interrupted in a reset"
        seeds: Any = np.array([-1 if given is None else given for given in plan.seeds])
        observations, infos = self._envs.reset(seed=seeds, options={"reset_mask": mask})
        self._waits_for_reset = ""
        return self._convert(observations), with_masks(infos, mask)

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads; in a forked child there are none."""
        super().close_extras(**kwargs)
        if os.getpid() == self._process:
            del self._envs  # its destructor waits for the threads, its close() does not

    def _convert(self, observations: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if observations.ndim == 4:
            return observations
        return observations.transpose(0, 1, 4, 2, 3).reshape(self.observation_space.shape or ())


def _build(
    num_envs: int, mode: AutoresetMode, threads: int, arguments: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - an extra

    envs: VectorEnv[Any, Any, Any] = AtariVectorEnv(
        num_envs=num_envs, num_threads=threads, autoreset_mode=mode, **arguments
    )
    return envs


def _check_version() -> None:
    import ale_py  # noqa: PLC0415 - an extra

    found = tuple(int(part) for part in ale_py.__version__.split("+")[0].split(".")[:3])
    if found < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ImportError(
            f"backend='native' needs ale-py {wanted} or newer, {ale_py.__version__} is installed: "
            f"pip install 'ale-py>={wanted}'."
        )
