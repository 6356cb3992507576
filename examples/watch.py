"""Train for a moment, load the policy from the run's folder, and watch it act in a plain env.

python examples/watch.py                                    # needs the extra train
"""

from __future__ import annotations

import gymnasium as gym

import envfleet


def main() -> None:
    """Train, load, play one episode, make a video."""
    result = envfleet.train("CartPole-v1", total_steps=5_000, run_dir="runs", backend="serial")
    policy = envfleet.load(result.folder)  # or "best", or a checkpoint's name

    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        action = policy.act(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    print(f"one episode: return {total:.0f}")

    with envfleet.make("CartPole-v1", 4, backend="serial", render_mode="rgb_array") as envs:
        print(envfleet.evaluate(policy, envs, episodes=8, seed=0))
        path = result.folder / "watch.gif"
        envfleet.record_agent(policy, envs, steps=50, path=path, scale=0.5)
        print(f"the video is {path}")


if __name__ == "__main__":
    main()
