"""The engine's seam: shards of every kind obey the same commands, and a pool asks them alike."""

from __future__ import annotations

from functools import partial

import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envfleet import EnvHost
from envfleet.engine.arena.arena import Arena, Terms
from envfleet.engine.local import LocalShard, LocalStarter
from envfleet.engine.messages import Call, Reset, SetAttr, Step
from envfleet.engine.pool.deadline import Deadline
from envfleet.engine.pool.pool import Pool
from envfleet.engine.process.shard import WorkerShard
from envfleet.engine.process.starting import WorkerStarter
from envfleet.engine.rules.seeding import plan_reset
from envfleet.engine.rules.spaces import Structure
from envfleet.engine.worker.server import Job
from fleet_envs import CounterEnv

NEVER = Deadline(None)
KINDS = {
    "local": [LocalShard],
    "workers": [WorkerShard, WorkerShard],
    "both": [WorkerShard, LocalShard],
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class Rig:
    """A pool of counting envs with its arena, and no fleet around it."""

    def __init__(self, kind, env_fns, mode=AutoresetMode.NEXT_STEP, signals=True):
        job = Job(env_fns, EnvHost, mode)
        shards = len(KINDS[kind])
        if kind == "local":
            starter = LocalStarter(job)
        else:
            starter = WorkerStarter(
                job,
                shards,
                caller_steps=kind == "both",
                context="fork",
                daemon=True,
                name="Rig",
                threads=None,
            )
        self.pool = Pool(starter)
        try:
            self.pool.start()
            self.pool.gather(NEVER)
            space = CounterEnv.observation_space
            structure, actions = Structure(space), Structure(spaces.Discrete(3))
            workers = KINDS[kind].count(WorkerShard)
            terms = Terms(
                structure, actions, mode, "all", shared_memory=True, signals=signals and workers > 0
            )
            if kind == "local":
                self.arena = Arena.private(terms, len(env_fns))
            else:
                self.arena = Arena.shared(terms, len(env_fns), workers)
            self.views = self.arena.views
            self.pool.own(lambda: self.arena)
            self.pool.attach()
            self.ask(lambda envs: Reset(plan_reset([None] * len(env_fns), None, 4).shard(envs)))
        except BaseException:
            self.pool.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pool.stop()

    def post(self, command_of):
        self.pool.post({s.index: command_of(s.env_ids) for s in self.pool.shards})

    def ask(self, command_of):
        """The outcomes of a command to every shard."""
        self.post(command_of)
        assert self.pool.gather(NEVER)
        self.pool.in_doubt = False
        return [outcome for _, outcome in self.pool.outcomes()]

    def step(self, *env_ids):
        """Step these envs alone."""
        return self.ask(lambda envs: Step(env_ids=[env for env in env_ids if env in envs]))

    @property
    def steps(self):
        return self.views.observations[0][:, 1].tolist()


def test_a_pool_is_a_list_of_shards_of_these_kinds(kind):
    with Rig(kind, [CounterEnv] * 4) as rig:
        assert [type(shard) for shard in rig.pool.shards] == KINDS[kind]
        envs = [env for shard in rig.pool.shards for env in shard.env_ids]
        assert envs == [0, 1, 2, 3]


@pytest.mark.parametrize("signals", [True, False])
def test_a_step_of_some_envs_moves_those_and_no_others(kind, signals):
    with Rig(kind, [CounterEnv] * 4, signals=signals) as rig:
        rig.step(1, 3)
        assert rig.steps == [0, 1, 0, 1]
        rig.step(3)
        assert rig.steps == [0, 1, 0, 2]
        assert rig.views.rewards.tolist()[1:] == [1, 0, 2]
        rig.ask(lambda _: Step())
        assert rig.steps == [1, 2, 1, 3]


def test_envs_of_a_step_get_their_own_actions_whatever_the_order(kind):
    with Rig(kind, [CounterEnv] * 4) as rig:
        rig.views.actions[0][...] = [0, 1, 2, 1]
        rig.step(3, 2, 0)
        asked = rig.ask(lambda envs: Call(list(envs), "first_action", (), {}))
        assert [a for outcome in asked for a in outcome.results] == [0, None, 2, 1]


def test_ends_belong_to_the_envs_that_were_stepped(kind):
    with Rig(kind, [partial(CounterEnv, length=2)] * 4) as rig:
        rig.step(0, 2)
        outcomes = rig.step(2)
        assert any(outcome.ended for outcome in outcomes)
        assert rig.views.terminated.tolist() == [False, False, True, False]
        rig.step(0)  # the flags of an env that is not stepped stay
        assert rig.views.terminated.tolist() == [True, False, True, False]
        rig.step(2)  # a reset takes the place of its next step
        assert rig.views.terminated.tolist() == [True, False, False, False]
        assert rig.views.observations[0].tolist() == [[1, 2], [1, 0], [2, 0], [1, 0]]


def test_same_step_autoreset_of_some_envs(kind):
    length_one = [partial(CounterEnv, length=1)] * 4
    with Rig(kind, length_one, AutoresetMode.SAME_STEP) as rig:
        rig.step(1)
        assert rig.views.observations[0].tolist() == [[1, 0], [2, 0], [1, 0], [1, 0]]
        assert rig.views.final_observations[0][1].tolist() == [1, 1]


def test_a_failure_among_some_envs_leaves_the_others_their_rows(kind):
    env_fns = [CounterEnv, partial(CounterEnv, fail_at=1), CounterEnv, CounterEnv]
    with Rig(kind, env_fns) as rig:
        failures = [f.env for outcome in rig.step(0, 1, 3) for f in outcome.failures]
        assert failures == [1]
        assert rig.steps == [1, 0, 0, 1]
        assert rig.views.failed.tolist() == [False, True, False, False]


def test_an_answer_that_was_given_up_is_never_taken_for_another(kind):
    with Rig(kind, [CounterEnv] * 4) as rig:
        rig.post(lambda _: Step())
        for shard in rig.pool.shards:
            shard.abandon()
        results = rig.ask(lambda envs: Call(list(envs), "resets", (), {}))
        assert [r for outcome in results for r in outcome.results] == [1] * 4


def test_a_settled_shard_answers_the_next_command(kind):
    with Rig(kind, [CounterEnv] * 4) as rig:
        rig.post(lambda _: Step())
        rig.pool.settle()
        results = rig.ask(lambda envs: Call(list(envs), "resets", (), {}))
        assert [r for outcome in results for r in outcome.results] == [1] * 4


def test_one_shard_may_be_asked_while_another_is_busy():
    with Rig("workers", [partial(CounterEnv, sleep=0.3), *[CounterEnv] * 3]) as rig:
        rig.pool.post({0: Step(), 1: Step()})
        assert rig.pool.converse(1, Call([2, 3], "tag", (), {})).results == ["unset", "unset"]
        assert rig.pool.late_envs() == [0, 1]
        assert rig.pool.gather(NEVER)
        rig.pool.in_doubt = False
        assert rig.steps == [1, 1, 1, 1]


def test_each_env_gets_its_own_value(kind):
    with Rig(kind, [CounterEnv] * 4) as rig:
        rig.ask(lambda envs: SetAttr(list(envs), "tag", [10 * env for env in envs]))
        results = rig.ask(lambda envs: Call(list(envs), "tag", (), {}))
        assert [r for outcome in results for r in outcome.results] == [0, 10, 20, 30]


def test_shards_say_where_they_are():
    with Rig("both", [CounterEnv] * 4) as rig:
        worker, local = rig.pool.shards
        assert worker.place == f", worker 0 (pid {worker.process.pid})"
        assert local.place == ""


def test_stopping_closes_the_envs_of_every_kind(kind, tmp_path):
    class Noisy(CounterEnv):
        def close(self):
            (tmp_path / f"{self.tag}").touch()

    rig = Rig(kind, [partial(Noisy, tag=i) for i in range(4)])
    assert rig.pool.stop() == []
    assert len(list(tmp_path.iterdir())) == 4
    assert rig.pool.stop() == []
