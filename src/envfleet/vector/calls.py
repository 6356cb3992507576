"""EnvCalls: what a fleet asks of its envs beside reset and step: methods, attributes, frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, SupportsIndex, get_args

import numpy as np
from gymnasium.core import ActType, ObsType, RenderFrame
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.engine.messages import Call, Command, KeepFinalFrames, Layer, SeedGlobals, SetAttr
from envfleet.engine.rules.seeding import derived_seed
from envfleet.errors import WorkerDied
from envfleet.vector.sharded import ShardedEnv

_OWN_METHODS = ("reset", "step", "close")


class EnvCalls(ShardedEnv[ObsType, ActType], Generic[ObsType, ActType]):
    """Calls some or all envs, wherever they live; each call is pending until it was waited for."""

    _called: Sequence[int] = ()
    _final_frame_env_ids: tuple[int, ...] = ()

    @property  # type: ignore[misc] # read-only, as in Gymnasium's engines
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The envs' random number generators (copies, where the envs live in other processes)."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seeds of the envs' random number generators."""
        return self.get_attr("np_random_seed")

    def call(self, name: str | Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; one result per env.

        Raises:
            ValueError: ``reset``, ``step`` and ``close`` must not go past the fleet.
        """
        return self.call_on(range(self.num_envs), name, *args, **kwargs)

    def call_on(
        self,
        env_ids: Iterable[SupportsIndex],
        name: str | Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Call a method of some envs, or read an attribute; results in the order of ``env_ids``.

        A function is called as ``name(env, *args, **kwargs)``, where the env lives and with the
        env in all its wrappers; it and its result are pickled on the way to other processes.

        Raises:
            IndexError, ValueError: there is no such env, or it is named twice.
            TypeError: ``name`` is neither a string nor callable.
        """
        try:
            self._call_async(env_ids, name, args, kwargs)
            return self.call_wait()
        except Exception as error:  # noqa: BLE001 - raised again
            self._raise_unless_closed(error)

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call of every env; ``call_wait`` returns its results.

        Raises:
            ClosedEnvironmentError: ``close`` was called.
            AlreadyPendingCallError: another call is pending.
        """
        self._call_async(range(self.num_envs), name, args, kwargs)

    def _call_async(
        self,
        env_ids: Iterable[SupportsIndex],
        name: str | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._assert_is_running()
        if name in _OWN_METHODS:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        if not isinstance(name, str) and not callable(name):
            raise TypeError(
                "a method's name, or a function that takes an env, can be called; got "
                f"{type(name).__name__}"
            )
        ids = self._check_env_ids(env_ids)
        self._call.refuse_another("call_async", env_ids=ids)
        self._post_call({i: Call(part, name, args, kwargs) for i, part in self._split(ids)}, ids)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the call that ``call_async`` started; one result per env.

        Raises:
            NoAsyncCallError: there is none.
            WaitTimeout: it took longer than ``timeout`` seconds; it stays pending.
        """
        self._assert_is_open()
        answers = self._call.wait(AsyncState.WAITING_CALL, timeout)
        self._pool.in_doubt = False
        results: dict[int, Any] = {}
        for envs, outcome in answers:
            asked = [env for env in self._called if env in envs]
            results.update(zip(asked, outcome.results, strict=True) if asked else ())
        return tuple(results[env] for env in self._called)

    def set_attr(
        self,
        name: str,
        values: list[Any] | tuple[Any, ...] | object,
        *,
        env_ids: Iterable[SupportsIndex] | None = None,
        on: Layer = "owner",
    ) -> None:
        """Set an attribute of every env, or of some; a list or tuple holds one value per env.

        What was set is set again in an env that is restarted.

        Args:
            name: of the attribute.
            values: one for all envs, or a list or tuple with one for each.
            env_ids: which envs; None is all.
            on: "owner" is the wrapper that has the attribute, and else the outermost, as in
                Gymnasium; "outermost" and "unwrapped" are those, whoever has it.

        Raises:
            IndexError, ValueError: there is no such env, or it is named twice; or the number of
                values is another one, or ``on`` is another word.
        """
        self._assert_is_running()
        if on not in get_args(Layer):
            raise ValueError(f"on must be one of {get_args(Layer)}, got {on!r}")
        ids = self._check_env_ids(range(self.num_envs) if env_ids is None else env_ids)
        value_of = dict(zip(ids, _one_value_each(values, len(ids)), strict=True))
        self._call.refuse_another("set_attr", env_ids=ids)
        commands = {
            i: SetAttr(part, name, [value_of[env] for env in part], on)
            for i, part in self._split(ids)
        }
        self._post_call(commands, setting=(name, on, value_of))
        self.call_wait()

    def seed_globals(self, seed: int) -> None:
        """Seed ``random`` and ``np.random`` wherever envs run, for envs that use them.

        Every process gets a seed of its own; torch's generator is seeded too in workers that have
        loaded it. Where envs run in the calling process, its generators are changed; ``reset``
        never does that.
        """
        self._assert_is_running()
        self._call.refuse_another("seed_globals")
        shards = self._pool.shards
        try:
            self._post_call({s.index: SeedGlobals(derived_seed(seed, s.index)) for s in shards})
            self.call_wait()
        except WorkerDied:
            if self._pool.is_broken:
                raise
            self.seed_globals(seed)  # the worker that has taken its place is to be seeded as well

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every env; as in Gymnasium, one that is callable is called."""
        return self.call(name)

    def render(self) -> tuple[RenderFrame, ...]:
        """What ``render`` returns, of every env."""
        return self.call("render")

    def render_on(self, env_ids: Iterable[SupportsIndex]) -> tuple[RenderFrame, ...]:
        """What ``render`` returns, of some envs only, in the order of ``env_ids``."""
        return self.call_on(env_ids, "render")

    def keep_final_frames(self, env_ids: Iterable[SupportsIndex]) -> None:
        """Have ``info["final_frame"]`` show what episodes end with that same-step autoreset hides.

        From now on for these envs and no others; the render mode must be "rgb_array". Where
        ``render`` raises, ``info["final_frame_error"]`` has the reason, and the step its answer.
        """
        self._assert_is_running()
        kept = self._check_env_ids(env_ids)
        self._call.refuse_another("keep_final_frames")
        if self._call.mender is not None:
            self._call.mender.history.note_recorded(kept)
        self._post_call(
            {
                shard.index: KeepFinalFrames([env for env in kept if env in shard.env_ids])
                for shard in self._pool.shards
            }
        )
        self.call_wait()
        self._final_frame_env_ids = tuple(kept)

    @property
    def final_frame_env_ids(self) -> tuple[int, ...]:
        """The envs whose final frames are kept."""
        return self._final_frame_env_ids

    def _post_call(
        self,
        commands: Mapping[int, Command],
        called: Sequence[int] = (),
        setting: tuple[str, Layer, dict[int, object]] | None = None,
    ) -> None:
        self._call.begin(moves_envs=False)
        self._called, self._call.setting = list(called), setting
        self._post(commands)
        self._call.posted(AsyncState.WAITING_CALL)


def _one_value_each(values: Any, count: int) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)):
        return [values] * count
    if len(values) != count:
        raise ValueError(
            "Values must be a list or tuple with length equal to the number of environments. "
            f"Got `{len(values)}` values for {count} environments."
        )
    return values
