"""Trains two models in one loop, each with its own job and optimizer: a policy, and a critic that judges it.

python examples/python/two_models.py [--steps N]
The policy sees a point and chooses one of four actions; the reward is 1 if the action is the point's quadrant. The critic learns the
expected reward, and the policy follows rewards that are better than expected.
"""

import argparse

import torch
from torch import nn

import tidepool


def make_model(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def reward_of(points: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    quadrant = (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()
    return (actions == quadrant).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps

    torch.manual_seed(1)
    policy, critic = tidepool.wrap(make_model(4)), tidepool.wrap(make_model(1))
    policy_optimizer = tidepool.optim.AdamW(policy.parameters(), lr=1e-2)
    critic_optimizer = tidepool.optim.AdamW(critic.parameters(), lr=1e-2)

    rewards = []
    for step in range(1, steps + 1):
        points = torch.rand(128, 2) * 2 - 1
        choice = torch.distributions.Categorical(logits=policy(points))
        actions = choice.sample()
        reward = reward_of(points, actions)

        with torch.no_grad():  # the critic's opinion; it is not trained by the policy's loss
            expected = critic(points).squeeze(1)
        (-(reward - expected) * choice.log_prob(actions)).mean().backward()
        policy_optimizer.step()

        nn.functional.mse_loss(critic(points).squeeze(1), reward).backward()
        critic_optimizer.step()

        rewards.append(reward.mean().item())
        if step % 30 == 0 or step == 1:
            print(f"step {step:4}  reward {rewards[-1]:.3f}")

    for model in (policy, critic):
        tidepool.close(model)
    if steps >= 100 and sum(rewards[-10:]) / 10 < 0.8:
        raise SystemExit(f"the policy has not learnt: reward {rewards[0]:.3f} to {rewards[-1]:.3f}")


if __name__ == "__main__":
    main()
