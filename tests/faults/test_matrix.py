"""Every fault in every phase: the right error, nothing hangs, nothing is lost, nothing is left.

After each cell: the text names env, phase, worker and cause; observations carry the envs' own call
counters, so stale data would show; the other envs answer; close() twice is silent; stderr is quiet;
and the leak check of the suite finds no process, descriptor, thread or shared memory.
"""

from __future__ import annotations

import os
import signal
import warnings
from functools import partial

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

import envfleet
from envfleet.testing import Fault, FaultEnv
from envfleet.testing.faults import TwoArguments, Unreducible
from faults.matrix import CELLS, DEATHS, HANGS, SAME_TYPE, TOLD_AS_TEXT

IN_PROCESS = {
    "raise-two-arguments": TwoArguments,
    "raise-unreducible": Unreducible,
    "raise-huge": RuntimeError,
}
PARAMETERS = [
    pytest.param(cell, id=cell.id, marks=[] if cell.quick else [pytest.mark.full]) for cell in CELLS
]


class Scene:
    """A fleet with one victim, and who it is."""

    def __init__(self, cell):
        self.cell = cell
        self.num_envs = 3 if cell.shard == 1 else 6
        self.workers = self.num_envs // cell.shard
        middle = self.num_envs // 2
        self.victim = {"first": 0, "middle": middle, "last": self.num_envs - 1}[cell.victim]
        self.worker = self.victim // cell.shard
        # The second step fires: the first one shows that all was well before.
        at = 2 if cell.phase == "step" else 1
        plan = {} if cell.phase == "idle" else {cell.phase: Fault(cell.kind, at=at)}
        self.fns = [FaultEnv] * self.num_envs
        self.fns[self.victim] = partial(FaultEnv, plan)
        self.others = np.array([env != self.victim for env in range(self.num_envs)])

    def build(self):
        if self.cell.context == "serial":
            if self.cell.through_make:
                return envfleet.make(self.fns, backend="serial")
            return envfleet.SerialVectorEnv(self.fns)
        if self.cell.through_make:
            return envfleet.make(
                self.fns,
                isolate=True,
                workers=self.workers,
                vector_kwargs={"context": self.cell.context},
            )
        if self.cell.context == "caller":
            options = {"context": "fork", "caller_steps": True}
        else:
            options = {"context": self.cell.context}
        return envfleet.ProcessVectorEnv(self.fns, workers=self.workers, **options)

    def actions(self):
        return [1] * self.num_envs

    def act(self, fleet, timeout=None):
        """Do what makes the fault fire."""
        phase = self.cell.phase
        if self.cell.context == "serial":
            self.act_serially(fleet)
        elif phase == "reset":
            fleet.reset_async()
            fleet.reset_wait(timeout)
        elif phase == "step":
            fleet.step_async(self.actions())
            fleet.step_wait(timeout)
        elif phase in ("call", "render"):
            fleet.call_async("ping" if phase == "call" else "render")
            fleet.call_wait(timeout)
        elif phase == "idle":
            number = {"sigkill": signal.SIGKILL, "sigsegv": signal.SIGSEGV}
            process = fleet.processes[self.worker]
            os.kill(process.pid, number.get(self.cell.kind, signal.SIGTERM))
            process.join()
            fleet.step(self.actions())

    def act_serially(self, fleet):
        if self.cell.phase == "reset":
            fleet.reset()
        elif self.cell.phase == "step":
            fleet.step(self.actions())
        else:
            fleet.call("ping" if self.cell.phase == "call" else "render")

    def prepare(self, fleet):
        if self.cell.phase != "reset":
            observations, _ = fleet.reset(seed=1)
            assert observations.tolist() == [[1, 0, 0]] * self.num_envs
            observations = fleet.step(self.actions())[0]
            assert observations.tolist() == [[1, 1, 1]] * self.num_envs

    @property
    def doing(self):
        return {
            "call": "call of 'ping'",
            "render": "call of 'render'",
            "idle": "idle",
            "construct": "start",
        }.get(self.cell.phase, self.cell.phase)


@pytest.mark.parametrize("cell", PARAMETERS)
def test_cell(cell, capfd):
    scene = Scene(cell)
    if cell.kind in HANGS:
        check_hang(scene)
    elif cell.kind in DEATHS:
        check_death(scene)
    else:
        check_error(scene)
    stderr = capfd.readouterr().err
    assert "resource_tracker" not in stderr
    assert "Exception ignored" not in stderr
    # A segmentation fault prints its Python stack, once; everything else is silent.
    # (The stderr of a fork server, and so of its workers, is not this test's.)
    own_segfault = cell.kind == "sigsegv" and cell.phase != "idle"
    if own_segfault and cell.context != "forkserver":
        assert stderr.count("Fatal Python error: Segmentation fault") == 1
    elif cell.kind not in ("sigsegv", "sigbus"):
        assert stderr == ""


def check_error(scene):
    cell = scene.cell
    expected = SAME_TYPE.get(cell.kind, envfleet.EnvError)
    if cell.context == "serial":  # nothing has to travel: only control flow is told as text
        expected = IN_PROCESS.get(cell.kind, expected)
    if cell.phase == "construct":
        with pytest.raises(expected) as caught:
            scene.build()
        check_text(scene, caught.value)
        return
    fleet = scene.build()
    scene.prepare(fleet)
    if cell.phase == "close":
        with pytest.warns(UserWarning, match=f"env {scene.victim}: "):
            fleet.close()
        close_silently(fleet)
        return
    with pytest.raises(expected) as caught:
        scene.act(fleet)
    check_text(scene, caught.value)
    assert set(fleet.get_attr("tag")) == {None}
    if cell.phase in ("reset", "step"):
        with pytest.raises(ResetNeeded, match=f"envs {scene.victim} raised"):
            fleet.step(scene.actions())
        observations, _ = fleet.reset(options={"reset_mask": ~scene.others})
        steps = 0 if cell.phase == "reset" else 2
        assert observations[scene.others].tolist() == [[1, steps, steps]] * scene.others.sum()
        assert observations[scene.victim].tolist() == [2, 0, steps]
        observations = fleet.step(scene.actions())[0]
        assert observations[scene.others, 2].tolist() == [steps + 1] * scene.others.sum()
    else:
        assert fleet.step(scene.actions())[0].tolist() == [[1, 2, 2]] * scene.num_envs
    close_silently(fleet)


def check_text(scene, error):
    notes = "\n".join(error.__notes__)
    assert f"raised by env {scene.victim} in " in notes
    if scene.cell.context == "serial" and not isinstance(error, envfleet.EnvError):
        assert error.__traceback__ is not None  # it is the very exception, in this process
        return
    if scene.cell.context != "serial":
        assert f"worker {scene.worker} (pid " in notes
    told = error if isinstance(error, envfleet.EnvError) else error.__cause__
    assert isinstance(told, envfleet.EnvError)
    assert told.env == scene.victim
    assert "faults.py" in told.traceback
    assert len(str(told)) < 50_000
    if scene.cell.kind in TOLD_AS_TEXT:
        assert told.type_name == TOLD_AS_TEXT[scene.cell.kind]


def check_death(scene):
    cell = scene.cell
    if cell.phase == "construct":
        with pytest.raises(envfleet.WorkerDied) as caught:
            scene.build()
        check_obituary(scene, caught.value)
        return
    fleet = scene.build()
    scene.prepare(fleet)
    if cell.phase == "close":
        close_silently(fleet)
        return
    with pytest.raises(envfleet.WorkerDied) as caught:
        scene.act(fleet)
    check_obituary(scene, caught.value)
    for use in (fleet.reset, lambda: fleet.step(scene.actions()), lambda: fleet.call("ping")):
        with pytest.raises(envfleet.FleetBroken) as broken:
            use()
        assert broken.value.__cause__ is caught.value
    close_silently(fleet)


def check_obituary(scene, death):
    cell = scene.cell
    assert death.worker == scene.worker
    assert scene.victim in death.envs
    assert len(death.envs) == cell.shard
    assert DEATHS[cell.kind] in str(death)
    assert f"pid {death.pid}" in str(death)
    assert death.command == scene.doing


def check_hang(scene):
    fleet = scene.build()
    scene.prepare(fleet)
    if scene.cell.phase != "close":
        with pytest.raises(envfleet.WaitTimeout, match="Late envs: ") as caught:
            scene.act(fleet, timeout=1.0)
        shard = range(scene.worker * scene.cell.shard, (scene.worker + 1) * scene.cell.shard)
        names = f"{shard[0]}-{shard[-1]}" if len(shard) > 1 else f"{shard[0]}"
        assert f"Late envs: {names}." in str(caught.value)
        with pytest.raises(AlreadyPendingCallError):
            fleet.call("ping")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Calling `close` while waiting")
        warnings.filterwarnings("ignore", ".*WARN: Calling `close` while waiting")
        fleet.close(timeout=0.3)
    close_silently(fleet)


def close_silently(fleet):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fleet.close()
        fleet.close()
    assert fleet.closed
