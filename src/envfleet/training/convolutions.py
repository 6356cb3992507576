"""Convolutions: images to features, the Nature DQN's network for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_LARGEST_GRID = 150
"""Places of the last convolution's output; 84x84 pixels give 49, and 128x128 give 144."""


class ImageBody(nn.Module):
    """A network for each image of an observation; ``width`` features of all of them together."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], features: int) -> None:
        super().__init__()
        self.networks = nn.ModuleList(nature_cnn(shape, features) for shape in shapes)
        self.width = features * len(shapes)

    def forward(self, images: list[Tensor]) -> Tensor:
        """The features of (N, C, H, W) each."""
        pairs = zip(self.networks, images, strict=True)
        parts = [network(image) for network, image in pairs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def nature_cnn(shape: tuple[int, ...], features: int) -> nn.Module:
    """Mnih et al.'s network (2015); images beyond 128x128 are halved by further layers.

    Without them the last layer would have most of the parameters: 31 million for 240x320 pixels.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], 32, 8, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),
    ]  # fmt: skip
    with torch.no_grad():
        grid = nn.Sequential(*layers)(torch.zeros(1, *shape))
        while grid[0, 0].numel() > _LARGEST_GRID:
            layers += [nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU()]
            grid = layers[-2](grid)
    convolutions = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(convolutions, nn.Linear(grid.numel(), features), nn.ReLU())
