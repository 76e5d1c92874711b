"""A U-Net that predicts the noise in images. Export it from the repository's root:

    python -m shardlens.export --call examples.python.models.unet:make_model --out unet.json
"""
from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(nn.functional.silu(self.norm1(x)))
        return self.conv2(nn.functional.silu(self.norm2(y))) + self.skip(x)


class Attention(nn.Module):
    """Of all pixels with each other."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(tokens).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).unflatten(2, (height, width))


class UNet(nn.Module):
    def __init__(self, channels: int = 64, levels: int = 3) -> None:
        super().__init__()
        sizes = [channels * 2**i for i in range(levels)]
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.ModuleList(Block(a, b) for a, b in zip([channels, *sizes], sizes))
        self.shrink = nn.ModuleList(nn.Conv2d(c, c, 3, stride=2, padding=1) for c in sizes[:-1])
        self.middle = nn.Sequential(Block(sizes[-1], sizes[-1]), Attention(sizes[-1], 4), Block(sizes[-1], sizes[-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(c, c // 2, 2, stride=2) for c in reversed(sizes[1:]))
        self.up = nn.ModuleList(Block(2 * c, c) for c in reversed(sizes[:-1]))
        self.head = nn.Conv2d(channels, 3, 1)

    def forward(self, noisy: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        x, kept = self.stem(noisy), []
        for i, block in enumerate(self.down):
            x = block(x)
            if i < len(self.shrink):
                kept.append(x)
                x = self.shrink[i](x)
        x = self.middle(x)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([grow(x), kept.pop()], dim=1))
        return nn.functional.mse_loss(self.head(x), noise)


def make_model() -> tuple[nn.Module, Callable[[int], tuple[torch.Tensor, torch.Tensor]]]:
    def inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, 3, 64, 64), torch.randn(batch, 3, 64, 64)

    return UNet(), inputs
