"""A vision transformer with a head of its own: a query for each class attends to the patches. From the repository's root:

    python -m shardlens.export --call examples.python.models.custom_vit:make_model --out custom_vit.json
"""
from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.mlp = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ClassQueries(nn.Module):
    """One logit for each class, from its own query over the patches."""

    def __init__(self, features: int, classes: int, heads: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(classes, features))
        self.attention = nn.MultiheadAttention(features, heads, batch_first=True)
        self.logit = nn.Linear(features, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries = self.queries.expand(x.shape[0], -1, -1)
        found, _ = self.attention(queries, x, x, need_weights=False)
        return self.logit(found).squeeze(-1)


class VisionTransformer(nn.Module):
    def __init__(self, image: int = 96, patch: int = 8, features: int = 256, layers: int = 6, heads: int = 4, classes: int = 40) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, features, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2, features))
        self.blocks = nn.ModuleList(Block(features, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(features)
        self.head = ClassQueries(features, classes, heads)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return nn.functional.binary_cross_entropy_with_logits(self.head(self.norm(x)), labels)


def make_model() -> tuple[nn.Module, Callable[[int], dict[str, torch.Tensor]]]:
    def inputs(batch: int) -> dict[str, torch.Tensor]:
        return {"images": torch.randn(batch, 3, 96, 96), "labels": torch.zeros(batch, 40)}

    return VisionTransformer(), inputs
