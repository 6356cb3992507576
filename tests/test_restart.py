"""on_failure="restart": workers that die or hang and envs that raise are replaced."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.testing import Fault, FaultEnv
from waiting import wait_until

Fleet = partial(envfleet.ProcessVectorEnv, context="fork", workers=2, on_failure="restart")
DEADLY = ["sigkill", "exit", "sigsegv", "raise", "raise-two-arguments", "raise-system-exit"]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, logger="envfleet")


def planned(tmp_path, phase, kind, at=1, **kwargs):
    """A fleet of four whose env 1 (of worker 0, with env 0) fails once."""
    fault = Fault(kind, at=at, once=str(tmp_path / "fired"))
    fns = [FaultEnv, partial(FaultEnv, {phase: fault}), FaultEnv, FaultEnv]
    return Fleet([partial(fn, length=5) for fn in fns], **kwargs)


def restarted(infos, num_envs=4):
    return infos.get("worker_restarted", np.zeros(num_envs)).astype(bool).tolist()


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared", "piped"])
@pytest.mark.parametrize("kind", DEADLY)
def test_next_step_reports_the_cut_then_resets(tmp_path, kind, shared_memory, capfd):
    with planned(tmp_path, "step", kind, at=3, shared_memory=shared_memory) as fleet:
        fleet.reset(seed=1)
        for _ in range(2):
            fleet.step([1] * 4)
        observations, rewards, terminated, truncated, infos = fleet.step([1] * 4)
        # Env 0 shares the worker: it is lost when the process is, and not when an env raises.
        cut = [not kind.startswith("raise"), True, False, False]
        assert restarted(infos) == cut
        assert truncated.tolist() == cut
        assert not terminated.any()
        assert rewards.tolist() == [0.0 if c else 1.0 for c in cut]
        assert observations.tolist() == [[1, 2, 2] if c else [1, 3, 3] for c in cut]
        observations, rewards, terminated, truncated, infos = fleet.step([1] * 4)
        assert observations.tolist() == [[1, 0, 0] if c else [1, 4, 4] for c in cut]
        assert rewards.tolist() == [0.0 if c else 1.0 for c in cut]
        assert not (terminated | truncated).any()
        assert restarted(infos) == [False] * 4
        assert fleet.step([1] * 4)[0][1].tolist() == [1, 1, 1]
    capfd.readouterr()  # faulthandler tells of the segmentation fault


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared", "piped"])
@pytest.mark.parametrize("kind", ["sigkill", "raise"])
def test_same_step_gives_the_last_observation_as_final_and_a_new_first_one(
    tmp_path, kind, shared_memory
):
    with planned(
        tmp_path, "step", kind, at=3, shared_memory=shared_memory, autoreset_mode="SameStep"
    ) as fleet:
        fleet.reset(seed=1)
        for _ in range(2):
            fleet.step([1] * 4)
        observations, rewards, _, truncated, infos = fleet.step([1] * 4)
        cut = [kind == "sigkill", True, False, False]
        assert restarted(infos) == cut == truncated.tolist()
        assert observations.tolist() == [[1, 0, 0] if c else [1, 3, 3] for c in cut]
        assert rewards.tolist() == [0.0 if c else 1.0 for c in cut]
        assert [f if f is None else f.tolist() for f in infos["final_obs"]] == [
            [1, 2, 2] if c else None for c in cut
        ]
        assert fleet.step([1] * 4)[0][1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["sigkill", "raise"])
def test_without_autoreset_the_env_waits_for_reset(tmp_path, kind):
    with planned(tmp_path, "step", kind, at=2, autoreset_mode="Disabled") as fleet:
        fleet.reset(seed=1)
        fleet.step([1] * 4)
        _, _, _, truncated, infos = fleet.step([1] * 4)
        cut = restarted(infos)
        assert truncated.tolist() == cut
        with pytest.raises(ResetNeeded):
            fleet.step([1] * 4)
        observations, _ = fleet.reset(options={"reset_mask": np.array(cut)})
        assert observations[1].tolist() == [1, 0, 0]
        assert observations[3].tolist() == [1, 2, 2]
        assert fleet.step([1] * 4)[0][3].tolist() == [1, 3, 3]


@pytest.mark.parametrize("kind", ["sigkill", "raise"])
def test_a_failure_in_reset_is_repeated_with_the_seeds_asked_for(tmp_path, kind):
    with planned(tmp_path, "reset", kind) as fleet:
        observations, infos = fleet.reset(seed=[10, 11, 12, 13])
        assert observations.tolist() == [[1, 0, 0]] * 4
        assert fleet.np_random_seed == (10, 11, 12, 13)
        assert infos == {}
        assert fleet.step([1] * 4)[0].tolist() == [[1, 1, 1]] * 4


def test_a_death_in_call_is_told_after_the_restart_and_cut_off_in_the_next_step(tmp_path):
    with planned(tmp_path, "call", "sigkill") as fleet:
        fleet.reset(seed=1)
        fleet.step([1] * 4)
        with pytest.raises(envfleet.WorkerDied, match="call of 'ping'"):
            fleet.call("ping")
        assert len(set(fleet.call("ping"))) == 2
        observations, rewards, _, truncated, infos = fleet.step([1] * 4)
        assert restarted(infos) == truncated.tolist() == [True, True, False, False]
        assert observations.tolist() == [[1, 1, 1]] * 2 + [[1, 2, 2]] * 2
        assert rewards.tolist() == [0, 0, 1, 1]
        assert fleet.step([1] * 4)[0].tolist() == [[1, 0, 0]] * 2 + [[1, 3, 3]] * 2


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared", "piped"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_masked_reset_after_a_death_leaves_the_neighbour_to_report_the_cut(
    tmp_path, mode, shared_memory
):
    options = {"autoreset_mode": mode, "shared_memory": shared_memory}
    with planned(tmp_path, "call", "sigkill", **options) as fleet:
        fleet.reset(seed=1)
        fleet.step([1] * 4)
        with pytest.raises(envfleet.WorkerDied):
            fleet.call("ping")
        mask = np.array([True, False, False, False])
        check_neighbour_of_a_masked_reset(fleet, mask, mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_masked_reset_in_which_the_worker_dies_leaves_the_neighbour_to_report_the_cut(mode):
    with Fleet([FaultEnv] * 4, autoreset_mode=mode) as fleet:
        fleet.reset(seed=1)
        fleet.step([1] * 4)
        kill(fleet, 0)
        mask = np.array([True, False, False, False])
        check_neighbour_of_a_masked_reset(fleet, mask, mode)


def check_neighbour_of_a_masked_reset(fleet, mask, mode):
    observations, infos = fleet.reset(options={"reset_mask": mask})
    assert observations.tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert restarted(infos) == [False] * 4
    observations, rewards, _, truncated, infos = fleet.step([1] * 4)
    assert restarted(infos) == truncated.tolist() == [False, True, False, False]
    assert rewards.tolist() == [1, 0, 1, 1]
    first = [1, 0, 0] if mode == AutoresetMode.SAME_STEP else [1, 1, 1]
    assert observations.tolist() == [[1, 1, 1], first, [1, 2, 2], [1, 2, 2]]
    if mode == AutoresetMode.SAME_STEP:
        assert infos["final_obs"][1].tolist() == [1, 1, 1]
    if mode == AutoresetMode.DISABLED:
        with pytest.raises(ResetNeeded):
            fleet.step([1] * 4)
        fleet.reset(options={"reset_mask": truncated})
    after = fleet.step([1] * 4)[0]
    assert after[1].tolist() == ([1, 0, 0] if mode == AutoresetMode.NEXT_STEP else [1, 1, 1])
    assert after[0].tolist() == [1, 2, 2]


def test_an_error_in_call_is_raised_and_nothing_is_restarted(tmp_path):
    with planned(tmp_path, "call", "raise") as fleet:
        pids = [process.pid for process in fleet.processes]
        with pytest.raises(ValueError, match="planned"):
            fleet.call("ping")
        assert [process.pid for process in fleet.processes] == pids


@pytest.mark.parametrize("kind", ["hang", "hang-stubbornly", "sigstop"])
def test_a_step_that_takes_too_long_is_a_failure(tmp_path, kind):
    with planned(tmp_path, "step", kind, step_timeout=1.5) as fleet:
        fleet.reset(seed=1)
        _, _, _, truncated, infos = fleet.step([1] * 4)
        assert restarted(infos) == truncated.tolist() == [True, True, False, False]
        assert fleet.step([1] * 4)[0].tolist() == [[1, 0, 0]] * 2 + [[1, 2, 2]] * 2


def test_without_restart_a_step_that_takes_too_long_is_a_death(tmp_path):
    fleet = planned(tmp_path, "step", "hang", step_timeout=0.3, on_failure="raise")
    fleet.reset()
    with pytest.raises(envfleet.WorkerDied, match=r"no answer within 0\.3 s"):
        fleet.step([1] * 4)
    with pytest.raises(envfleet.FleetBroken):
        fleet.step([1] * 4)
    fleet.close()


def test_what_was_set_is_set_again(tmp_path):
    for kind in ("sigkill", "raise"):
        folder = tmp_path / kind
        folder.mkdir()
        with planned(folder, "step", kind) as fleet:
            fleet.reset()
            fleet.set_attr("tag", [10, 11, 12, 13])
            fleet.set_attr("length", 77)
            fleet.step([1] * 4)
            assert fleet.get_attr("tag") == (10, 11, 12, 13)
            assert fleet.get_attr("length") == (77,) * 4


@pytest.mark.parametrize("kind", ["sigkill", "raise"])
def test_what_was_set_in_some_envs_is_set_again_in_those(tmp_path, kind):
    with planned(tmp_path, "step", kind) as fleet:
        fleet.reset()
        fleet.set_attr("tag", ["first", "last"], env_ids=[0, 3])
        fleet.set_attr("tag", "again", env_ids=[0])
        fleet.step([1] * 4)
        assert fleet.get_attr("tag") == ("again", None, None, "last")


def test_new_envs_get_fresh_seeds_derived_from_the_old_ones(tmp_path):
    def seeds(folder):
        folder.mkdir()
        with planned(folder, "step", "sigkill") as fleet:
            fleet.reset(seed=5)
            fleet.step([1] * 4)
            fleet.step([1] * 4)
            return fleet.np_random_seed

    first, again = seeds(tmp_path / "a"), seeds(tmp_path / "b")
    assert first == again
    assert first[2:] == (7, 8)
    assert len({*first, 5, 6}) == 6


def step_for_long(fleet):
    for _ in range(20):
        fleet.step([1, 1])


@pytest.mark.parametrize("kind", ["sigkill", "raise"])
def test_the_budget_ends_a_crash_loop(kind):
    fns = [FaultEnv, partial(FaultEnv, {"step": Fault(kind)})]
    fleet = Fleet(fns, restarts=(3, 60.0))
    fleet.reset()
    error = envfleet.WorkerDied if kind == "sigkill" else ValueError
    with pytest.raises(error) as caught:
        step_for_long(fleet)
    assert "3 within 60.0 s are spent" in caught.value.__notes__[-1]
    if kind == "sigkill":
        with pytest.raises(envfleet.FleetBroken):
            fleet.step([1, 1])
    fleet.close()


def test_a_worker_that_dies_while_starting_again_costs_another_restart(tmp_path):
    class Fragile(FaultEnv):
        """The second and third instance kill their process."""

        def __init__(self):
            count = len(list(tmp_path.iterdir()))
            (tmp_path / str(count)).touch()
            fatal = {"construct": Fault("sigkill")} if count in (1, 2) else {}
            super().__init__(fatal or {"step": Fault("sigkill")} if count == 0 else fatal)

    with Fleet([Fragile, FaultEnv]) as fleet:
        fleet.reset()
        assert restarted(fleet.step([1, 1])[4], 2) == [True, False]
        assert fleet.step([1, 1])[0].tolist() == [[1, 0, 0], [1, 2, 2]]
        assert len(list(tmp_path.iterdir())) == 4


def test_several_deaths_at_once_are_all_mended(tmp_path):
    faults = [{"step": Fault("sigkill", at=2, once=str(tmp_path / str(i)))} for i in range(4)]
    with Fleet([partial(FaultEnv, fault) for fault in faults], workers=4) as fleet:
        fleet.reset()
        fleet.step([1] * 4)
        observations, *_, infos = fleet.step([1] * 4)
        assert restarted(infos) == [True] * 4
        assert observations.tolist() == [[1, 1, 1]] * 4


def test_loose_observations_are_carried_over_too(tmp_path):
    class Teller(FaultEnv):
        observation_space = spaces.Dict(text=spaces.Text(20), count=spaces.Discrete(99))

        def _observe(self):
            return {"text": f"step {self.episode_steps}", "count": self.episode_steps}

    for mode in AutoresetMode:
        folder = tmp_path / mode.value
        folder.mkdir()
        fault = {"step": Fault("sigkill", at=2, once=str(folder / "fired"))}
        with Fleet([partial(Teller, fault), Teller], autoreset_mode=mode) as fleet:
            fleet.reset()
            fleet.step([1, 1])
            observations, *_, infos = fleet.step([1, 1])
            expected = "step 0" if mode == AutoresetMode.SAME_STEP else "step 1"
            assert observations["text"] == (expected, "step 2")
            if mode == AutoresetMode.SAME_STEP:
                assert infos["final_obs"][0] == {"text": "step 1", "count": 1}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_failure": "ignore"}, "`on_failure` must be"),
        ({"restarts": (-1, 60.0)}, "`restarts` is a pair"),
        ({"restarts": (5, 0)}, "`restarts` is a pair"),
        ({"step_timeout": 0}, "`step_timeout` must be"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        envfleet.ProcessVectorEnv([FaultEnv], **options)


def test_training_goes_on_while_workers_are_killed():
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    kills = 0
    fns = [partial(FaultEnv, length=20)] * 6
    with Fleet(fns, workers=3, restarts=(1000, 60.0)) as fleet:
        observations, _ = fleet.reset(seed=1)
        due = np.zeros(6, dtype=bool)
        cuts = 0
        for step in range(3000):
            if step % 100 == 50:
                os.kill(rng.choice(fleet.processes).pid, signal.SIGKILL)
                kills += 1
            before = observations
            observations, rewards, terminated, truncated, infos = fleet.step([1] * 6)
            cut = np.array(restarted(infos, 6))
            assert (truncated == cut).all()
            assert (observations[cut] == before[cut]).all()
            plain = ~cut & ~due
            assert (observations[plain, 1] == before[plain, 1] + 1).all(), "stale or invented"
            assert (observations[due & ~cut, 1] == 0).all()
            assert (rewards == plain).all()
            cuts += int(cut.sum())
            due = terminated | truncated
        assert cuts == 2 * kills


def test_a_restart_is_one_log_line(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="envfleet")
    with planned(tmp_path, "step", "sigkill") as fleet:
        fleet.reset()
        fleet.step([1] * 4)
    assert len(caplog.records) == 1
    assert "SIGKILL" in caplog.text
    assert "Restart 1." in caplog.text


def test_gymnasiums_statistics_wrapper_goes_on_over_a_restart(tmp_path):
    fleet = gym.wrappers.vector.RecordEpisodeStatistics(planned(tmp_path, "step", "sigkill", at=3))
    fleet.reset(seed=1)
    for _ in range(12):
        fleet.step(np.ones(4, dtype=np.int64))
    fleet.close()


# What else can go wrong on the way


def kill(fleet, *workers):
    for worker in workers:
        os.kill(fleet.processes[worker].pid, signal.SIGKILL)
        fleet.processes[worker].join()


def test_workers_that_died_idle_together_are_all_mended():
    with Fleet([FaultEnv] * 3, workers=3) as fleet:
        fleet.reset()
        fleet.step([1] * 3)
        kill(fleet, 0, 1)
        observations, *_, infos = fleet.step([1] * 3)
        assert restarted(infos, 3) == [True, True, False]
        assert observations.tolist() == [[1, 1, 1], [1, 1, 1], [1, 2, 2]]
        assert fleet.step([1] * 3)[0].tolist() == [[1, 0, 0], [1, 0, 0], [1, 3, 3]]


class Vengeful(FaultEnv):
    """Raises in its first step, and kills another worker while it is built for the second time."""

    def __init__(self, folder):
        if (folder / "built").exists():
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        (folder / "built").touch()
        super().__init__({"step": Fault("raise", once=str(folder / "fired"))})


def test_a_death_while_another_env_is_rebuilt_is_mended_in_the_next_step(tmp_path):
    with Fleet([partial(Vengeful, tmp_path), FaultEnv]) as fleet:
        (tmp_path / "pid").write_text(str(fleet.processes[1].pid))
        fleet.reset()
        assert restarted(fleet.step([1, 1])[4], 2) == [True, False]
        assert restarted(fleet.step([1, 1])[4], 2) == [False, True]
        assert fleet.step([1, 1])[0].tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("phase", ["construct", "reset"])
def test_a_new_worker_that_dies_while_it_is_renewed_costs_another_restart(tmp_path, phase):
    fatal = {
        "step": Fault("raise", once=str(tmp_path / "step")),
        phase: Fault("sigkill", once=str(tmp_path / phase)),
    }
    (tmp_path / phase).touch()
    with Fleet([partial(FaultEnv, fatal), FaultEnv], autoreset_mode="SameStep") as fleet:
        fleet.reset()
        (tmp_path / phase).unlink()
        observations, *_, infos = fleet.step([1, 1])
        assert restarted(infos, 2) == [True, False]
        assert observations.tolist() == [[1, 0, 0], [1, 1, 1]]
        assert fleet.step([1, 1])[0].tolist() == [[1, 1, 1], [1, 2, 2]]


def test_a_worker_replaced_after_a_call_may_die_again_before_the_next_step(tmp_path):
    with planned(tmp_path, "call", "sigkill") as fleet:
        fleet.reset()
        with pytest.raises(envfleet.WorkerDied):
            fleet.call("ping")
        kill(fleet, 0)
        assert restarted(fleet.step([1] * 4)[4]) == [True, True, False, False]
        assert fleet.step([1] * 4)[0][0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared", "piped"])
@pytest.mark.parametrize("text", [False, True], ids=["fixed", "loose"])
def test_a_masked_reset_after_a_restart_leaves_the_neighbours_rows_alone(shared_memory, text):
    class Teller(FaultEnv):
        observation_space = spaces.Text(20) if text else FaultEnv.observation_space

        def _observe(self):
            return f"step {self.episode_steps}" if text else super()._observe()

    options = {"autoreset_mode": "Disabled", "shared_memory": shared_memory}
    with Fleet([Teller] * 2, workers=1, **options) as fleet:
        fleet.reset()
        fleet.step([1, 1])
        kill(fleet, 0)
        fleet.step([1, 1])
        observations, _ = fleet.reset(options={"reset_mask": np.array([True, False])})
        expected = ["step 0", "step 1"] if text else [[1, 0, 0], [1, 1, 1]]
        assert [o if text else o.tolist() for o in observations] == expected


def test_a_rebuilt_env_is_reset_with_what_was_set(tmp_path):
    class Scaled(FaultEnv):
        def _observe(self):
            return super()._observe() + (self.tag or 0)

    fault = {"step": Fault("raise", once=str(tmp_path / "fired"))}
    with Fleet([partial(Scaled, fault), Scaled], autoreset_mode="SameStep") as fleet:
        fleet.set_attr("tag", 100)
        fleet.reset()
        assert fleet.step([1, 1])[0].tolist() == [[101, 100, 100], [101, 101, 101]]


def test_the_seed_of_a_restart_is_used_once():
    class Seeds(FaultEnv):
        def __init__(self):
            super().__init__(length=2)
            self.seen = []

        def reset(self, *, seed=None, options=None):
            self.seen.append(seed)
            return super().reset(seed=seed, options=options)

    for mode in ("NextStep", "Disabled"):
        with Fleet([Seeds], workers=1, autoreset_mode=mode) as fleet:
            fleet.reset(seed=5)
            kill(fleet, 0)
            fleet.step([1])
            if mode == "NextStep":
                fleet.reset(seed=77)
                for _ in range(4):
                    fleet.step([1])
                assert fleet.get_attr("seen") == ([77, None],)
            else:
                fleet.reset()
                ((fresh,),) = fleet.get_attr("seen")
                assert fresh not in (None, 5)


class Picky(FaultEnv):
    def __setattr__(self, name, value):
        if value == "bad":
            raise ValueError("bad")
        super().__setattr__(name, value)


def test_what_could_not_be_set_is_not_set_again():
    with Fleet([Picky] * 2) as fleet:
        fleet.reset()
        fleet.set_attr("tag", "good")
        with pytest.raises(ValueError, match="bad"):
            fleet.set_attr("tag", "bad")
        kill(fleet, 0)
        fleet.step([1, 1])
        assert fleet.get_attr("tag") == ("good", "good")


@pytest.mark.parametrize("kind", ["sigkill", "raise"])
def test_what_cannot_be_set_again_is_an_error_that_says_so(tmp_path, kind):
    class Fickle(FaultEnv):
        """Takes a tag only the first time that such an env is built."""

        def __init__(self, plan=None):
            super().__init__(plan)
            self.is_first = not (tmp_path / "built").exists()

        def __setattr__(self, name, value):
            if name == "tag" and value is not None and not self.is_first:
                raise ValueError("no tag any more")
            super().__setattr__(name, value)

    fault = {"step": Fault(kind, once=str(tmp_path / "fired"))}
    fleet = Fleet([partial(Fickle, fault), FaultEnv])
    (tmp_path / "built").touch()
    fleet.reset()
    fleet.set_attr("tag", 7)
    with pytest.raises(ValueError, match="no tag any more") as caught:
        fleet.step([1, 1])
    assert "raised by env 0 in set_attr of 'tag', worker 0" in caught.value.__notes__[0]
    if kind == "sigkill":
        with pytest.raises(envfleet.FleetBroken):
            fleet.step([1, 1])
    fleet.close()


def test_what_some_envs_have_taken_is_set_again_in_those():
    with Fleet([Picky] * 2) as fleet:
        fleet.reset()
        with pytest.raises(ValueError, match="bad"):
            fleet.set_attr("tag", ["good", "bad"])
        kill(fleet, 0, 1)
        fleet.step([1, 1])
        assert fleet.get_attr("tag") == ("good", None)


def test_a_constructor_that_fails_once_in_a_restart_costs_another_one(tmp_path):
    class Shy(FaultEnv):
        """Its second instance cannot be built."""

        def __init__(self):
            count = len(list(tmp_path.iterdir()))
            (tmp_path / str(count)).touch()
            super().__init__({"construct": Fault("raise")} if count == 1 else {})

    with Fleet([Shy, FaultEnv]) as fleet:
        fleet.reset()
        kill(fleet, 0)
        assert restarted(fleet.step([1, 1])[4], 2) == [True, False]
        assert len(list(tmp_path.iterdir())) == 3


def test_an_env_rebuilt_in_a_reset_gets_a_seed_derived_from_its_old_one(tmp_path):
    def seed(folder):
        folder.mkdir()
        fault = {"reset": Fault("raise", at=2, once=str(folder / "fired"))}
        with Fleet([partial(FaultEnv, fault)]) as fleet:
            fleet.reset(seed=5)
            fleet.reset()
            return fleet.np_random_seed

    first = seed(tmp_path / "a")
    assert first == seed(tmp_path / "b")
    assert first not in ((5,), (None,))


def test_an_info_of_a_rebuilt_env_that_cannot_travel_does_not_cost_the_budget(tmp_path):
    class Locked(FaultEnv):
        def reset(self, *, seed=None, options=None):
            observation, _ = super().reset(seed=seed, options=options)
            return observation, {"lock": threading.Lock()} if options is None else {}

    fault = {"step": Fault("raise", once=str(tmp_path / "fired"))}
    with Fleet([partial(Locked, fault)], autoreset_mode="SameStep") as fleet:
        fleet.reset(options={"quiet": True})
        with pytest.raises(TypeError, match=r"info\['lock'\] cannot be pickled"):
            fleet.step([1])
        assert fleet.step([1])[0].tolist() == [[1, 1, 1]]


def test_a_worker_that_dies_during_another_ones_repair_is_replaced_once(tmp_path):
    other = {"step": Fault("raise", once=str(tmp_path / "other"))}
    with Fleet([partial(Vengeful, tmp_path), partial(FaultEnv, other)]) as fleet:
        (tmp_path / "pid").write_text(str(fleet.processes[1].pid))
        fleet.reset()
        assert restarted(fleet.step([1, 1])[4], 2) == [True, True]
        assert restarted(fleet.step([1, 1])[4], 2) == [False, False]
        assert fleet.step([1, 1])[0].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_slow_call_is_not_taken_for_a_late_step():
    class Slow(FaultEnv):
        def think(self):
            time.sleep(2.5)

    with Fleet([Slow] * 2, step_timeout=1.0) as fleet:
        fleet.reset()
        fleet.step([1, 1])
        time.sleep(1.2)
        fleet.call_async("think")
        with pytest.raises(envfleet.WaitTimeout):
            fleet.call_wait(timeout=0.1)
        assert fleet.reset()[0].tolist() == [[2, 0, 1], [2, 0, 1]]


class TaggingHost(envfleet.EnvHost):
    """Counts in its process what it has done, and tells it in each reset."""

    made = 0

    def make_env(self, i, env_fn):
        self.made += 1
        return super().make_env(i, env_fn)

    def reset_env(self, i, **kwargs):
        observation, info = super().reset_env(i, **kwargs)
        return observation, {**info, "made": self.made}


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", ["sigkill", "raise"])
def test_restarts_keep_the_kind_of_host_under_every_start_method(tmp_path, kind, context):
    with planned(tmp_path, "step", kind, worker=TaggingHost, context=context) as fleet:
        fleet.reset(seed=1)
        assert restarted(fleet.step([1] * 4)[4]) == [kind == "sigkill", True, False, False]
        observations, *_, infos = fleet.step([1] * 4)
        assert observations[1].tolist() == [1, 0, 0]
        # A new worker has made its two envs; a living one its two, and one of them again.
        assert infos["made"][1] == (2 if kind == "sigkill" else 3)


def test_ctrl_c_during_a_restart_leaves_the_fleet_broken_and_closable(tmp_path):
    class Interrupter(FaultEnv):
        """Its second instance interrupts the caller, as Ctrl-C would, and takes its time."""

        def __init__(self, plan=None):
            super().__init__(plan)
            if (tmp_path / "built").exists():
                os.kill(os.getppid(), signal.SIGINT)
                signal.pause()
            (tmp_path / "built").touch()

    fleet = Fleet([Interrupter, FaultEnv])
    fleet.reset()
    kill(fleet, 0)
    with pytest.raises(KeyboardInterrupt):
        fleet.step([1, 1])
    with pytest.raises(envfleet.FleetBroken, match="lost a worker") as caught:
        fleet.step([1, 1])
    assert isinstance(caught.value.__cause__, envfleet.WorkerDied)
    fleet.close()


def test_a_reset_after_a_time_out_does_not_wait_for_a_hung_step(tmp_path):
    with planned(tmp_path, "step", "hang", step_timeout=1.5) as fleet:
        fleet.reset()
        fleet.step_async([1] * 4)
        with pytest.raises(envfleet.WaitTimeout):
            fleet.step_wait(timeout=0.1)
        assert fleet.reset()[0][1].tolist() == [1, 0, 0]
        assert fleet.step([1] * 4)[0][1].tolist() == [1, 1, 1]


def test_a_hang_while_an_env_is_renewed_is_a_failure_too(tmp_path):
    fatal = {
        "step": Fault("sigkill", once=str(tmp_path / "step")),
        "reset": Fault("hang", once=str(tmp_path / "reset")),
    }
    (tmp_path / "reset").touch()
    options = {"autoreset_mode": "SameStep", "step_timeout": 1.5}
    with Fleet([partial(FaultEnv, fatal), FaultEnv], **options) as fleet:
        fleet.reset()
        (tmp_path / "reset").unlink()
        assert restarted(fleet.step([1, 1])[4], 2) == [True, False]


def test_a_restart_that_cannot_start_leaves_the_fleet_broken_and_closable(monkeypatch):
    fleet = Fleet([FaultEnv] * 2)
    fleet.reset()
    kill(fleet, 0)

    def refuse(*args):
        raise OSError("no more processes")

    monkeypatch.setattr(fleet._pool._starter, "start", refuse)
    with pytest.raises(OSError, match="no more processes"):
        fleet.step([1, 1])
    with pytest.raises(envfleet.FleetBroken):
        fleet.step_wait()
    fleet.close()
    fleet.close_extras()


def test_a_fleet_with_restarts_that_is_dropped_leaves_nothing():
    for _ in range(3):
        Fleet([FaultEnv] * 2).reset()


def test_close_from_another_thread_ends_a_blocked_wait():
    fleet = Fleet([FaultEnv, partial(FaultEnv, {"step": Fault("hang")})], on_failure="raise")
    fleet.reset()
    fleet.step_async([1, 1])
    closed = []

    def close():
        with pytest.warns(UserWarning, match="Calling `close` while waiting"):
            fleet.close(timeout=0.2)
        closed.append(True)

    closer = threading.Timer(0.2, close)
    closer.start()
    with pytest.raises((gym.error.ClosedEnvironmentError, envfleet.WorkerDied)):
        fleet.step_wait()
    closer.join()
    assert closed


FROZEN = """
import os, signal, sys, time
from functools import partial
import envfleet
from envfleet.testing import FaultEnv

class Slow(FaultEnv):
    def step(self, action):
        time.sleep(0.7)
        return super().step(action)

with envfleet.ProcessVectorEnv(
    [Slow] * 2, context="fork", workers=2, on_failure="restart", step_timeout=2.5
) as fleet:
    fleet.reset()
    print(*[process.pid for process in fleet.processes], flush=True)
    if sys.argv[1] == "between":
        fleet.step_async([1, 1])
        os.kill(os.getpid(), signal.SIGSTOP)  # until somebody lets it go on
        fleet.step_wait()
    for _ in range(3):
        fleet.step([1, 1])
    print(fleet.restart_count, flush=True)
"""


@pytest.mark.parametrize("moment", ["waiting", "between"])
def test_a_program_that_is_frozen_with_its_workers_restarts_none(moment):
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, moment], stdout=subprocess.PIPE, text=True
    ) as program:
        workers = [int(pid) for pid in program.stdout.readline().split()]
        everybody = [*workers, program.pid]
        if moment == "between":
            wait_until(lambda: psutil.Process(program.pid).status() == psutil.STATUS_STOPPED)
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4)  # longer than the time-out: that is the point
        for pid in reversed(everybody):  # the caller looks before its workers can have answered
            os.kill(pid, signal.SIGCONT)
        assert program.stdout.read() == "0\n"
    assert program.returncode == 0
