"""An asynchronous actor-learner: DQN learns from what is there while environments go on stepping.

python examples/async_dqn.py [--steps 30000]

Half of the fleet, whichever envs are ready first, is received and sent on at once; while they all
step, the network takes a gradient step. No env ever waits for the learner's slowest neighbour.
"""

from __future__ import annotations

import argparse
import copy
from collections import deque
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import envfleet


def main(steps: int = 30_000, num_envs: int = 16, seed: int = 0) -> float:
    """Act and learn; the mean return of the last 50 episodes."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the other cores are the envs'
    rng = np.random.default_rng(seed)
    q = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
    target, adam = copy.deepcopy(q), torch.optim.Adam(q.parameters(), lr=1e-3)
    replay: deque[tuple[Any, ...]] = deque(maxlen=20_000)
    returns: deque[float] = deque(maxlen=50)
    make = partial(gymnasium.make, "CartPole-v1")
    with envfleet.ProcessVectorEnv([make] * num_envs) as envs:
        last, _ = envs.reset(seed=seed)
        fresh, score = np.zeros(num_envs, bool), np.zeros(num_envs)
        actions = rng.integers(2, size=num_envs)
        envs.send(actions)
        for turn in range(steps // (num_envs // 2)):
            # Act: for whoever is ready.
            ids, now, reward, over, cut, _ = envs.recv(num_envs // 2, num_envs // 2)
            for k, i in enumerate(ids):
                if not fresh[i]:  # the row after an end is that of the reset: no transition
                    replay.append((last[i].copy(), actions[i], reward[k], now[k], over[k]))
            score[ids] += reward
            returns.extend(score[ids][over | cut])
            score[ids[over | cut]] = 0.0
            last[ids], fresh[ids] = now, over | cut
            with torch.no_grad():
                best = q(torch.as_tensor(now)).argmax(-1).numpy()
            explores = rng.random(len(ids)) < max(0.05, 1 - 4 * turn * len(ids) / steps)
            actions[ids] = np.where(explores, rng.integers(2, size=len(ids)), best)
            envs.send(actions[ids], ids)
            # Learn: while they step.
            sample = [replay[i] for i in rng.integers(len(replay), size=128)]
            was, action, gain, then, ended = (
                torch.as_tensor(np.array(column)) for column in zip(*sample, strict=True)
            )
            with torch.no_grad():
                goal = gain.float() + 0.99 * ~ended * target(then).max(-1).values
            guess = q(was).gather(1, action[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(guess, goal)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            if turn % 100 == 0:
                target.load_state_dict(q.state_dict())
            if turn % 1000 == 999:
                print(f"{turn * len(ids):,} steps, return {np.mean(returns):.0f}: {envs.flow()}")
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30_000)
    print(f"return of the last 50 episodes: {main(parser.parse_args().steps):.0f}")
