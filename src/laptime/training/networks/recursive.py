"""A recursive network: one layer, applied at every node of a tree, from the leaves to the root."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laptime.training.networks.registry import network

KINDS = 6  # padding, false, true, not, and, or


@network("recursive", input=(31, 3), classes=2, ids=KINDS, data="trees", parameters=3_362)
class Recursive(nn.Module):
    """A node's vector comes from its kind and its children's vectors: 3,362 parameters with vectors of 32.

    6·32 for the kinds, 96·32 + 32 for the composition, 32·2 + 2 for the classes of the root. Socher et al.,
    "Parsing natural scenes and natural language with recursive neural networks", ICML 2011.

    Trees come as rows (kind, left, right) in post-order, children by their row, -1 where there is none. All
    trees of a batch go through their n-th nodes together, so shapes never depend on the trees.
    """

    def __init__(self, *, num_classes: int = 2, kinds: int = KINDS, size: int = 32) -> None:
        super().__init__()
        self.kinds = nn.Embedding(kinds, size)
        self.compose = nn.Linear(3 * size, size)
        self.output = nn.Linear(size, num_classes)

    def forward(self, trees: Tensor) -> Tensor:
        """Scores for each class, from the root: the last node that is no padding."""
        samples, nodes, _ = trees.shape
        places = torch.arange(nodes, device=trees.device)
        kinds = self.kinds(trees[..., 0])
        # Vectors are kept one place later than their nodes: place 0 is the child that is not there. A child
        # comes before its parent; made-up rows that say otherwise are led to the nearest node that does.
        children = torch.minimum(trees[..., 1:] + 1, places[:, None])[..., None].expand(
            -1, -1, -1, kinds.shape[2]
        )
        vectors = [torch.zeros_like(kinds[:, 0])]
        for node in range(nodes):
            below = torch.stack(vectors, dim=1).gather(1, children[:, node]).flatten(1)
            vectors.append(torch.tanh(self.compose(torch.cat([kinds[:, node], below], dim=1))))
        root = ((trees[..., 0] != 0) * (places + 1)).amax(dim=1)
        roots = torch.stack(vectors, dim=1)[torch.arange(samples, device=root.device), root]
        scores: Tensor = self.output(roots)
        return scores
