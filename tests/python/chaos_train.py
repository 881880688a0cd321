"""The program that `scripts/chaos --python` kills: a small language model, trained by each rank on its share of made-up text.

usage: chaos_train.py --server DIR --out DIR --steps N [--job NAME]

It goes on behind the job's last sealed step. Rank 0 writes DIR/metrics.jsonl, a line a step, and at the end DIR/weights.
"""

import argparse
import json
import os

import torch
from torch import nn
from torch.nn import functional

import tidepool

WORDS, WIDTH, LENGTH = 128, 64, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.wide, self.narrow = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.mix(self.before(x)).chunk(3, -1)
        x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.narrow(functional.gelu(self.wide(self.behind(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        scores = self.head(self.blocks(self.words(tokens[:, :-1])))
        return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def batch(step, rank):
    """Text in which each word follows from the one before."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    first = torch.randint(0, WORDS, (4, 1), generator=generator)
    return (first + 3 * torch.arange(LENGTH)) % WORDS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--job", default="chaos")
    options = parser.parse_args()

    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(1)
    model = tidepool.wrap(Model(), job=options.job, server=options.server, rcache="25%", chunk_size="64KiB")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, max_grad_norm=1.0)

    for step in range(optimizer.sealed_steps, options.steps):
        loss = model(batch(step, rank))
        loss.backward()
        optimizer.step()
        if rank == 0:
            with open(os.path.join(options.out, "metrics.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step + 1, "loss": loss.item()}) + "\n")
    tidepool.save_pretrained(model, os.path.join(options.out, "weights"))
    tidepool.close(model)


if __name__ == "__main__":
    main()
