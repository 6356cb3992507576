"""AtariEnv: an Atari game as the published results play it, straight from the emulator."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from operator import index
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from envfleet.envs.atari_options import (
    CONSOLE_FPS,
    RENDER_MODES,
    check_options,
    find_game,
    import_extra,
    mean_skip,
)
from envfleet.envs.frames import LazyFrames

Frame = NDArray[np.uint8]

_MERGED = 128
"""Channels that OpenCV can interleave; np.concatenate does any number, in four times the time."""


class AtariEnv(gymnasium.Env[Any, Any], EzPickle):
    """An Atari game with the preprocessing of the published baselines, all in one env.

    A step repeats the action for ``frame_skip`` raw frames. The observation is the brighter of the
    step's last two raw frames, pixel by pixel, resized, with ``num_stack - 1`` earlier ones before
    it; where the game ends in the middle of a step, its last two raw frames are those before the
    end. The reward is the sign of what the step earned.

    **Lives and games.** With ``episodic_life`` a lost life is ``terminated``, but the game goes on:
    ``reset()`` after it plays one no-op and continues (if that ends the game, a new one begins).
    Any other ``reset()``, ``reset(seed=...)`` and ``reset(options={"new_game": True})`` start a new
    game with 1 to ``noop_max`` no-ops of a raw frame each, from the env's own random numbers. Games
    that have a FIRE button then get it, and the action after it, as the baselines do, after lost
    lives too. Game over is ``terminated``, ALE's limit of 108,000 raw frames ``truncated``.

    **What is told.** Infos have ``lives``, ``episode_frame_number`` and ``frame_number`` as ALE's,
    ``episode_step`` and ``episode_score`` of the game so far, rewards neither clipped nor cut at
    lives. When the game ends, ``info["episode"]`` has its score ``r``, steps ``l`` and seconds
    ``t``, as Gymnasium's RecordEpisodeStatistics has; a lost life has none. (A game that ends in
    the no-op or FIRE of ``reset`` is in the info of ``reset``.) So the statistics of collectors and
    ``evaluate`` count games. ``return_queue`` and ``length_queue`` have the last 100.

    Subclasses may override ``observation`` and ``reward``.

    Args:
        env_id: such as "ALE/Pong-v5" or "PongNoFrameskip-v4".
        seed: of the first ``reset`` that is given none, and of the action space.
        render_mode: "rgb_array", "human" or None.
        obs_type: "grayscale", "rgb", or "ram" for the console's 128 bytes, which are neither
            pooled nor resized.
        frame_skip: raw frames per step, or (low, high): one below high is drawn at each step, as
            ALE does. What the id says about it does not count.
        num_stack: how many frames an observation has; after ``reset`` all are the first.
        image_size: (height, width) of a frame; None is the console's, 210 x 160.
        noop_max: the most no-ops at the beginning of a game; 0 is none.
        episodic_life: see above.
        fire_reset: see above.
        clip_reward: whether rewards are signs.
        max_pool: whether the last two raw frames are pooled; consoles draw some things in every
            other frame only.
        repeat_action_probability: of ALE's sticky actions; None is what the id says (v5: 0.25).
        channels_first: observations are (num_stack, H, W), RGB (num_stack * 3, H, W); else
            (H, W, num_stack) or (H, W, 3 * num_stack). RAM is (128 * num_stack,).
        lazy: return ``LazyFrames``; else arrays, which belong to the caller.

    Raises:
        ValueError: an unknown game, or an option that means nothing; the choices are named.
        gymnasium.error.DependencyNotInstalled: ale_py or OpenCV is missing.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": list(RENDER_MODES),
        "render_fps": CONSOLE_FPS / 4,
    }

    def __init__(
        self,
        env_id: str,
        seed: int | None = None,
        render_mode: str | None = "rgb_array",
        obs_type: Literal["grayscale", "rgb", "ram"] = "grayscale",
        frame_skip: int | tuple[int, int] = 4,
        num_stack: int = 4,
        image_size: tuple[int, int] | None = (84, 84),
        noop_max: int = 30,
        *,
        episodic_life: bool = True,
        fire_reset: bool = True,
        clip_reward: bool = True,
        max_pool: bool = True,
        repeat_action_probability: float | None = None,
        channels_first: bool = False,
        lazy: bool = False,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name != "self"}
        EzPickle.__init__(self, **asked)
        check_options(
            render_mode=render_mode,
            obs_type=obs_type,
            frame_skip=frame_skip,
            num_stack=num_stack,
            image_size=image_size,
            noop_max=noop_max,
            repeat_action_probability=repeat_action_probability,
        )
        spec = find_game(env_id)
        if type(self).__init__ is AtariEnv.__init__:
            self.spec = EnvSpec(
                spec.id, f"{type(self).__module__}:{type(self).__qualname__}", kwargs=asked
            )
        ale_py = import_extra("ale_py")
        self._cv2 = None if obs_type == "ram" else import_extra("cv2")
        game = {**spec.kwargs, "obs_type": obs_type, "frameskip": 1, "render_mode": render_mode}
        if repeat_action_probability is not None:
            game["repeat_action_probability"] = repeat_action_probability
        self._game = ale_py.AtariEnv(**game)
        self.ale = self._game.ale
        """The emulator (``ale_py.ALEInterface``)."""
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": CONSOLE_FPS / mean_skip(frame_skip)}  # type: ignore[misc]
        self.action_space = self._game.action_space
        self._actions = list(self._game._action_set)  # noqa: SLF001 - there is no other way to it
        self._noop = ale_py.Action.NOOP
        meanings = self.get_action_meanings()
        has_fire = len(meanings) > 2 and meanings[1] == "FIRE"
        self._opening = self._actions[1:3] if fire_reset and has_fire else []
        frames_of_a_game = self.ale.getInt("max_num_frames_per_episode")
        self.max_episode_steps = (
            int(-(-frames_of_a_game // mean_skip(frame_skip))) if frames_of_a_game else None
        )
        """Where ALE cuts a game, in steps; None if it does not."""
        self._frame_skip, self._noop_max = frame_skip, noop_max
        self._episodic_life, self._clip_reward = episodic_life, clip_reward
        self._max_pool = max_pool and obs_type != "ram"
        self._lazy = lazy
        self._lay_out(obs_type, image_size, num_stack, channels_first=channels_first)

        self.return_queue: deque[float] = deque(maxlen=100)
        """The scores of the last games."""
        self.length_queue: deque[int] = deque(maxlen=100)
        """Their steps."""
        self._seed = seed
        self._np_random = self._game.np_random
        if seed is not None:
            self.action_space.seed(seed)
        self._state: Literal["new", "playing", "life lost", "over"] = "new"
        self._told: dict[str, Any] | None = None
        self._begin_count()

    def _lay_out(
        self,
        obs_type: str,
        image_size: tuple[int, int] | None,
        num_stack: int,
        *,
        channels_first: bool,
    ) -> None:
        """Decide the shapes of raw frames, frames and observations."""
        ale = self.ale
        raw = (ale.getRAMSize(),) if obs_type == "ram" else tuple(ale.getScreenDims())
        raw += (3,) if obs_type == "rgb" else ()
        self._grab: Callable[[Frame], None] = {
            "ram": ale.getRAM,
            "rgb": ale.getScreenRGB,
            "grayscale": ale.getScreenGrayscale,
        }[obs_type]
        self._screens = (np.empty(raw, np.uint8), np.empty(raw, np.uint8))
        self._screen = self._screens[0]
        self._frame_shape, self._axis = raw, 0
        self._size: tuple[int, int] | None = None
        if obs_type != "ram":
            height, width = raw[:2] if image_size is None else image_size
            self._size = None if (height, width) == raw[:2] else (width, height)  # OpenCV's order
            self._frame_shape = (height, width, 3 if obs_type == "rgb" else 1)
            self._axis = 0 if channels_first else -1
        shape = list(self._frame_shape)
        if channels_first and obs_type != "ram":
            shape = [shape[2], shape[0], shape[1]]
        self._is_turned = shape != list(self._frame_shape)
        shape[self._axis] *= num_stack
        self.observation_space = spaces.Box(0, 255, tuple(shape), np.uint8)
        self._frames: deque[Frame] = deque(maxlen=num_stack)
        self._join: Callable[[deque[Frame]], Any]
        if self._lazy:
            self._join = functools.partial(LazyFrames, axis=self._axis)
        elif self._axis == -1 and num_stack > 1 and shape[-1] <= _MERGED and self._cv2 is not None:
            self._join = self._cv2.merge
        else:
            self._join = functools.partial(np.concatenate, axis=self._axis)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a life, or a game: see the class.

        Args:
            seed: start a new game, with this seed.
            options: ``{"new_game": True}`` starts a new game; other keys mean nothing here.
        """
        seed, self._seed = self._seed if seed is None else seed, None
        super().reset(seed=seed)
        self._told = None
        goes_on = self._state == "life lost" and not (options or {}).get("new_game")
        if goes_on and seed is None:
            self._play_alone(self._noop)
        else:
            self._start_game(seed)
        for action in self._opening:
            self._play_alone(action)
        self._state = "playing"
        self._lives = self.ale.lives()
        self._frames.extend([self._seen()] * (self._frames.maxlen or 1))
        return self._join(self._frames), self._info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Repeat an action for the frames of a step.

        Raises:
            ValueError: the action is not one of the action space.
            gymnasium.error.ResetNeeded: the game has not begun, or is over.
        """
        if self._state in ("new", "over"):
            text = "has not begun" if self._state == "new" else "is over"
            raise gymnasium.error.ResetNeeded(f"the game {text}: call reset() before step()")
        number = index(action)
        if not 0 <= number < len(self._actions):
            raise ValueError(f"action must be 0 to {len(self._actions) - 1}, got {number}")
        self._told = None
        self._steps += 1
        earned = self._play(self._actions[number])
        terminated = self.ale.game_over(with_truncation=False)
        truncated = self.ale.game_truncated()
        lives = self.ale.lives()
        # Qbert has no lives for a few frames before its game is over: that is not the end of one.
        life_lost = self._episodic_life and 0 < lives < self._lives
        self._lives = lives
        if terminated or truncated:
            self._state = "over"
            self._tell_game()
        elif life_lost:
            self._state = "life lost"
        self._frames.append(self._seen())
        observation = self._join(self._frames)
        return observation, self.reward(earned), terminated or life_lost, truncated, self._info()

    def observation(self, frame: Frame) -> Frame:
        """A frame as it is stacked, from ALE's; may be overridden.

        Args:
            frame: (210, 160) grey, (210, 160, 3) RGB or (128,) RAM, pooled. It is overwritten by
                the next step.

        Returns:
            (H, W, 1), (H, W, 3) or (128,), bytes; an array of its own.
        """
        if self._size is None or self._cv2 is None:
            return frame.reshape(self._frame_shape).copy()
        resized = self._cv2.resize(frame, self._size, interpolation=self._cv2.INTER_AREA)
        return resized.reshape(self._frame_shape)  # type: ignore[no-any-return]

    def reward(self, reward: float) -> float:
        """The reward of a step, from what its frames earned; may be overridden."""
        return float((reward > 0) - (reward < 0)) if self._clip_reward else reward

    def render(self) -> Any:
        """The console's screen, (210, 160, 3), under "rgb_array"; otherwise nothing."""
        return None if self.render_mode is None else self._game.render()

    def get_action_meanings(self) -> list[str]:
        """What the actions are, in their order: NOOP, FIRE, ..."""
        return list(self._game.get_action_meanings())

    # The game

    def _start_game(self, seed: int | None = None) -> None:
        """Begin a game, with no-ops."""
        if seed is not None:
            self._game.seed_game(seed)
            self._game.load_game()
            self._np_random = self._game.np_random
        self.ale.reset_game()
        self._begin_count()
        noops = int(self.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0
        for _ in range(noops):
            self._score += self.ale.act(self._noop)
            if self.ale.game_over():
                self.ale.reset_game()
                self._begin_count()
        self._screen = self._screens[0]
        self._grab(self._screen)

    def _play_alone(self, action: Any) -> None:
        """A step that the learner does not see; if it ends a life or the game, the next begins."""
        lives = self.ale.lives()
        self._play(action)
        if self.ale.game_over():
            if self._steps:
                self._tell_game()
            self._start_game()
        elif self._episodic_life and 0 < self.ale.lives() < lives:
            self._play_alone(self._noop)

    def _play(self, action: Any) -> float:
        """Repeat an action, until the game ends at the latest; what that has earned."""
        skip = self._frame_skip
        if isinstance(skip, tuple):
            skip = int(self.np_random.integers(*skip))
        act, game_over, grab, pools = self.ale.act, self.ale.game_over, self._grab, self._max_pool
        newer, older = self._screens
        earned, taken = 0.0, 0
        for taken in range(1, skip + 1):
            earned += act(action)
            is_over = game_over()
            # The game may end with any frame, and is then seen with the one before it.
            if pools or is_over or taken == skip:
                newer, older = older, newer
                grab(newer)
            if is_over:
                break
        if pools and taken > 1:
            np.maximum(newer, older, out=newer)
        self._screen = newer
        self._score += earned
        return earned

    def _seen(self) -> Frame:
        """The frame of the stack from what is on the screen."""
        frame = self.observation(self._screen)
        if frame.shape != self._frame_shape or frame.dtype != np.uint8:
            raise ValueError(
                f"observation() must return bytes of shape {self._frame_shape}, got {frame.dtype} "
                f"of shape {frame.shape}"
            )
        if self._is_turned:
            frame = np.ascontiguousarray(frame.transpose(2, 0, 1))
        frame.flags.writeable = False  # several observations share it
        return frame

    # What is told

    def _begin_count(self) -> None:
        self._steps, self._score, self._began = 0, 0.0, time.perf_counter()

    def _tell_game(self) -> None:
        """Note a game that has ended."""
        self.return_queue.append(self._score)
        self.length_queue.append(self._steps)
        seconds = round(time.perf_counter() - self._began, 6)
        self._told = {"r": self._score, "l": self._steps, "t": seconds}

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            "lives": self._lives,
            "episode_frame_number": self.ale.getEpisodeFrameNumber(),
            "frame_number": self.ale.getFrameNumber(),
            "episode_step": self._steps,
            "episode_score": self._score,
        }
        if self._told is not None:
            info["episode"] = self._told
        return info
