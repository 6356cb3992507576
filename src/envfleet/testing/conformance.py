"""check_vector_env: does anybody's vector engine return what Gymnasium's SyncVectorEnv returns?"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import GraphInstance
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

Factory = Callable[[Sequence[Callable[[], gymnasium.Env[Any, Any]]], AutoresetMode], Any]

EVERYDAY_SPACES: tuple[Space[Any], ...] = (
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Discrete(5),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(3),
    spaces.Dict(
        pose=spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))),
        camera=spaces.Box(0, 255, (2, 2, 3), np.uint8),
    ),
)
"""What every engine should manage, as observation and as action."""


def check_vector_env(
    factory: Factory,
    *,
    autoreset_modes: Iterable[AutoresetMode] = tuple(AutoresetMode),
    spaces: Iterable[Space[Any]] = EVERYDAY_SPACES,
    num_envs: int = 3,
    steps: int = 40,
) -> None:
    """Compare an engine with ``SyncVectorEnv``, number by number, over many episodes.

    Args:
        factory: builds the engine from a list of env functions and an autoreset mode.
        autoreset_modes: the modes that the engine has.
        spaces: spaces of the envs it is tried on, each as observation and as action space.
        num_envs: how many envs.
        steps: steps per space and mode.

    Raises:
        AssertionError: naming the place of the first difference.
    """
    for mode in autoreset_modes:
        for space in spaces:
            fns = [partial(SpaceEnv, space)] * num_envs
            fleet = factory(fns, mode)
            try:
                compare(fleet, SyncVectorEnv(fns, autoreset_mode=mode), steps=steps)
            except AssertionError as error:
                error.add_note(f"with autoreset mode {mode.name} and space {space}")
                raise
            finally:
                fleet.close()


def compare(
    fleet: VectorEnv[Any, Any, Any],
    oracle: VectorEnv[Any, Any, Any],
    *,
    steps: int = 40,
    seed: int = 123,
) -> None:
    """Both fleets have the same spaces and answer the same to the same calls.

    Raises:
        AssertionError: where they differ, or if hardly an episode ended in so many steps.
    """
    assert isinstance(fleet, VectorEnv), f"{type(fleet)} is not a gymnasium.vector.VectorEnv"
    for name in ("observation_space", "action_space"):
        for attribute in (name, f"single_{name}"):
            assert getattr(fleet, attribute) == getattr(oracle, attribute), attribute
    mode = oracle.metadata["autoreset_mode"]
    assert fleet.metadata.get("autoreset_mode") == mode, "metadata['autoreset_mode']"
    assert_same(fleet.reset(seed=seed), oracle.reset(seed=seed), "reset")
    batched = batch_space(oracle.single_action_space, oracle.num_envs)
    batched.seed(seed)
    episodes = 0
    for step in range(steps):
        actions = batched.sample()
        expected = oracle.step(actions)
        assert_same(fleet.step(actions), expected, f"step {step}")
        ended = expected[2] | expected[3]
        episodes += int(ended.sum())
        if mode == AutoresetMode.DISABLED and ended.any():
            options = {"reset_mask": ended, "level": 3}
            answer = fleet.reset(options=dict(options))
            assert_same(answer, oracle.reset(options=dict(options)), f"masked reset {step}")
    assert episodes > oracle.num_envs, "too few episodes ended to tell anything"


def assert_same(got: Any, want: Any, path: str = "answer") -> None:
    """Raise AssertionError, with the place, where two answers differ in type, dtype or value."""
    if isinstance(want, GraphInstance):
        assert isinstance(got, GraphInstance), path
        for name in ("nodes", "edges", "edge_links"):
            assert_same(getattr(got, name), getattr(want, name), f"{path}.{name}")
    elif isinstance(want, dict):
        assert isinstance(got, dict), f"{path}: {type(got)}"
        assert got.keys() == want.keys(), path
        for key in want:
            assert_same(got[key], want[key], f"{path}[{key!r}]")
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want), f"{path}: {type(got)} is not {type(want)}"
        assert len(got) == len(want), path
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(want, np.ndarray):
        assert isinstance(got, np.ndarray), f"{path}: {type(got)}"
        assert got.dtype == want.dtype, f"{path}: {got.dtype} is not {want.dtype}"
        assert got.shape == want.shape, f"{path}: {got.shape} is not {want.shape}"
        if want.dtype == object:
            for place in np.ndindex(want.shape):
                assert_same(got[place], want[place], f"{path}{list(place)}")
        else:
            np.testing.assert_array_equal(got, want, err_msg=path)
    elif isinstance(want, (int, float, np.number)):
        assert np.asarray(got).dtype == np.asarray(want).dtype, f"{path}: {got!r}, {want!r}"
        assert got == want, path
    else:
        assert type(got) is type(want), f"{path}: {type(got)} is not {type(want)}"
        assert got == want, path


def digest(value: Any) -> int:
    """A number that depends on a value's type, dtype, shape and content."""

    def text(part: Any) -> str:
        if isinstance(part, np.ndarray):
            return f"array{part.shape}{part.dtype}{part.tolist()}"
        if isinstance(part, dict):
            return "dict" + "".join(f"{key}:{text(part[key])}" for key in sorted(part))
        if isinstance(part, GraphInstance):
            return "graph" + text(part.nodes) + text(part.edges) + text(part.edge_links)
        if isinstance(part, tuple):
            return "tuple" + "".join(text(item) for item in part)
        return f"{type(part).__name__}{part}"

    return zlib.crc32(text(value).encode()) % 10_000


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Samples any observation space, digests its action into reward and info, ends irregularly.

    All of it depends on the seed only, so that two engines can be compared number by number.
    """

    def __init__(
        self, space: Space[Any], action_space: Space[Any] | None = None, longest: int = 4
    ) -> None:
        self.observation_space = space
        self.action_space = action_space if action_space is not None else space
        self._longest = longest
        self._sampler = copy.deepcopy(space)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode of 1 to ``longest`` steps."""
        super().reset(seed=seed)
        self._sampler.seed(int(self.np_random.integers(2**31)))
        self._length = int(self.np_random.integers(1, self._longest + 1))
        self._ending = int(self.np_random.integers(3))
        self.steps = 0
        info: dict[str, Any] = {"length": self._length, "options": digest(options)}
        if self._ending == 1:
            info["rare"] = {"word": "reset", "vector": np.arange(3.0)}
        return self._sampler.sample(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; the reward tells the type, dtype, shape and content of the action."""
        self.steps += 1
        reward = digest(action) / 100
        done = self.steps >= self._length
        info: dict[str, Any] = {"step": self.steps, "share": self.steps / self._length}
        if self.steps % 2:
            info["odd"] = {"digest": digest(action), "flag": bool(done), "kind": "odd"}
        return (
            self._sampler.sample(),
            reward,
            done and self._ending != 1,
            done and self._ending != 0,
            info,
        )
