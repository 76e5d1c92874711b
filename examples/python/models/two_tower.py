"""Two towers, one of texts and one of items, trained so that those that belong together are near each other. From the repository's root:

    python -m shardlens.export --call examples.python.models.two_tower:make_model --seq 64 --out two_tower.json
"""
from collections.abc import Callable

import torch
from torch import nn


class TextTower(nn.Module):
    def __init__(self, vocabulary: int, features: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, features)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(features, 4, 4 * features, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(features)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x.mean(dim=1))


class ItemTower(nn.Module):
    """Sums of embeddings of categories, and numbers, through a perceptron."""

    def __init__(self, categories: int, numbers: int, features: int) -> None:
        super().__init__()
        self.categories = nn.EmbeddingBag(categories, features, mode="sum")
        self.numbers = nn.Linear(numbers, features)
        self.layers = nn.Sequential(nn.Linear(2 * features, 4 * features), nn.ReLU(), nn.Linear(4 * features, features))

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.categories(categories), self.numbers(numbers)], dim=-1))


class TwoTower(nn.Module):
    def __init__(self, features: int = 256) -> None:
        super().__init__()
        self.text, self.item = TextTower(20000, features, 4), ItemTower(50000, 16, features)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        texts = nn.functional.normalize(self.text(tokens), dim=-1)
        items = nn.functional.normalize(self.item(categories, numbers), dim=-1)
        return self.scale * texts @ items.T


def make_model() -> tuple[nn.Module, Callable[[int, int], dict[str, torch.Tensor]], Callable[[torch.Tensor], torch.Tensor]]:
    def inputs(batch: int, seq: int) -> dict[str, torch.Tensor]:
        return {
            "tokens": torch.randint(20000, (batch, seq)),
            "categories": torch.randint(50000, (batch, 8)),
            "numbers": torch.randn(batch, 16),
        }

    def loss(similarity: torch.Tensor) -> torch.Tensor:
        pairs = torch.arange(similarity.shape[0])
        return (nn.functional.cross_entropy(similarity, pairs) + nn.functional.cross_entropy(similarity.T, pairs)) / 2

    return TwoTower(), inputs, loss
