"""PPO in one file, in CleanRL's style, on a fleet that ``envfleet.make`` chooses.

python examples/ppo_single_file.py                        # solves CartPole, in less than a minute
python examples/ppo_single_file.py --env-id Acrobot-v1    # any env with discrete actions

Only the lines marked ENVS are about environments. An episode that a time limit cut off could have
gone on: the value of its last observation stands in for the rewards that are missing.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import envfleet


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """A linear layer with orthogonal weights."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """An actor and a critic, two layers each."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        """What observations are worth, (n, 1)."""
        value: torch.Tensor = self.critic(x)
        return value

    def get_action_and_value(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions (new ones, or those given), log-probabilities, entropy, values."""
        policy: Any = Categorical(logits=self.actor(x))
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(x)


def train(args: argparse.Namespace) -> tuple[Agent, float]:
    """Train an agent; returns it and the mean return of its last 100 episodes."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # networks as small as these are slower with more
    envs: Any = envfleet.make(args.env_id, args.num_envs, autoreset_mode="SameStep")  # ENVS
    print(envs.plan)
    agent = Agent(int(np.prod(envs.single_observation_space.shape)), envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    rows = args.num_steps, args.num_envs
    obs = torch.zeros(*rows, *envs.single_observation_space.shape)
    actions = torch.zeros(rows, dtype=torch.long)
    logprobs, rewards, dones, values = (torch.zeros(rows) for _ in range(4))
    finished: deque[float] = deque(maxlen=100)
    returns_so_far, global_step, start = np.zeros(args.num_envs), 0, time.monotonic()

    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0])  # ENVS
    updates = args.total_timesteps // (args.num_steps * args.num_envs)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = (1 - update / updates) * args.learning_rate
        for step in range(args.num_steps):
            obs[step] = next_obs
            with torch.no_grad():
                actions[step], logprobs[step], _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
            seen, reward, terminated, truncated, infos = envs.step(actions[step].numpy())  # ENVS
            next_obs, rewards[step] = torch.as_tensor(seen), torch.as_tensor(reward)
            done = terminated | truncated
            dones[step] = torch.as_tensor(done)
            returns_so_far += reward
            for env in np.flatnonzero(done):
                if truncated[env] and not terminated[env]:
                    with torch.no_grad():
                        final = agent.get_value(torch.as_tensor(infos["final_obs"][env]))  # ENVS
                    rewards[step, env] += args.gamma * final.item()
                finished.append(returns_so_far[env])
                returns_so_far[env] = 0
        global_step += args.num_steps * args.num_envs

        with torch.no_grad():  # advantages
            advantages, last = torch.zeros(rows), torch.zeros(args.num_envs)
            after = agent.get_value(next_obs).flatten()
            for t in reversed(range(args.num_steps)):
                alive = 1 - dones[t]
                delta = rewards[t] + args.gamma * alive * after - values[t]
                advantages[t] = last = delta + args.gamma * args.gae_lambda * alive * last
                after = values[t]
            targets = advantages + values
        learn(agent, optimizer, args, [obs, actions, logprobs, advantages, targets])

        mean = float(np.mean(finished or [np.nan]))
        if update % 10 == 0 or update == updates - 1:
            speed = global_step / (time.monotonic() - start)
            print(f"{global_step:>8} steps  {speed:>7,.0f}/s  return {mean:.1f}", flush=True)
    envs.close()  # ENVS
    return agent, mean


def learn(
    agent: Agent, optimizer: torch.optim.Adam, args: argparse.Namespace, rollout: list[Any]
) -> None:
    """Improve the agent with one rollout."""
    obs, actions, logprobs, advantages, targets = (part.flatten(0, 1) for part in rollout)
    for _ in range(args.update_epochs):
        for batch in torch.randperm(len(obs)).chunk(args.num_minibatches):
            _, logprob, entropy, value = agent.get_action_and_value(obs[batch], actions[batch])
            ratio = (logprob - logprobs[batch]).exp()
            gain = (advantages[batch] - advantages[batch].mean()) / (advantages[batch].std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.min(gain * ratio, gain * clipped).mean()
            value_loss = 0.5 * (value.flatten() - targets[batch]).square().mean()
            loss = policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * value_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments, by CleanRL's names."""
    parser = argparse.ArgumentParser(description=__doc__)
    numbers = {"num_envs": 8, "num_steps": 128, "total_timesteps": 200_000}
    numbers |= {"update_epochs": 4, "num_minibatches": 4, "seed": 1}
    reals = {"learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "clip_coef": 0.2}
    reals |= {"ent_coef": 0.01, "vf_coef": 0.5}
    parser.add_argument("--env-id", default="CartPole-v1")
    for name, default in {**numbers, **reals}.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int if name in numbers else float, default=default)
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parse())
