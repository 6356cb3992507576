"""Record videos: of one env while a collector runs, then of a whole fleet side by side.

python examples/record_videos.py    # writes renders/misc/render_0.gif and renders/misc/fleet.gif
"""

from __future__ import annotations

import torch

import envfleet


class Balancer:
    """Pushes the cart to the side that the pole falls to: good enough to watch."""

    def act(
        self, observations: torch.Tensor, deterministic: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions, log-probabilities and values; sometimes it is clumsy, if it may."""
        falling = observations[:, 2] + 0.5 * observations[:, 3]
        actions = (falling > 0).long()
        if not deterministic:
            clumsy = torch.rand(len(actions)) < 0.3
            actions = torch.where(clumsy, 1 - actions, actions)
        nothing = torch.zeros(len(actions))
        return actions, nothing, nothing


def main() -> None:
    """Make both videos."""
    agent = Balancer()
    envs = envfleet.make("CartPole-v1", 6, render_mode="rgb_array")
    recorder = envfleet.Recorder(env_ids=[0], max_frames=150, scale=0.5)
    with envfleet.Collector(envs, agent, steps=128, seed=1, recorder=recorder) as collector:
        collector.collect()
        collector.collect()
        path = "renders/misc/fleet.gif"
        envfleet.record_agent(agent, envs, steps=120, path=path, scale=0.3, render_every=3, seed=2)
    print(f"videos are in {recorder.folder}: return {collector.statistics.window.returns.mean:.0f}")


if __name__ == "__main__":
    main()
