"""Trains a small torch module through memserver, with an ordinary training loop.

python examples/python/plain_loop.py [--steps N]
If no memserver runs in the default directory, a private one is started, which ends with the program.
"""

import argparse

import torch
from torch import nn

import tidepool


def make_model() -> nn.Module:
    hidden = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.GELU())]
    return nn.Sequential(nn.Linear(16, 128), nn.GELU(), *hidden, nn.Linear(128, 1))


def batch(size: int = 64) -> tuple:
    """Points, and the values that the model should learn for them."""
    x = torch.randn(size, 16)
    return x, x[:, :4].sin().sum(1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps

    torch.manual_seed(1)
    model = tidepool.wrap(make_model(), rcache="60%")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=3e-3, max_grad_norm=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    losses = []
    for step in range(1, steps + 1):
        x, y = batch()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == 1:
            print(f"step {step:4}  loss {losses[-1]:.4f}  gradient norm {optimizer.last_grad_norm:.3f}")

    print(tidepool.memory(model))
    tidepool.close(model)
    if steps >= 50 and losses[-1] > losses[0] / 2:
        raise SystemExit(f"the loss has not fallen by half: {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
