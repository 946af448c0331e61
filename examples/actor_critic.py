"""Actor and critic are two heads of one network, which learns to walk around a cliff.

python examples/actor_critic.py

Each step of 32 worlds is one sample: the actor's gradient is that of -A log p(action), for the
advantage A, and the critic's is that of (v - R)^2 / 2 (Mnih et al. 2016, arXiv:1602.01783, sec. 4).
"""

import argparse

import numpy as np

from phitodeep.functional import softmax
from phitodeep.model import Network, SequentialBuilder
from phitodeep.optimization.optimizers import Adam

ROWS, COLUMNS, WORLDS, STEPS = 4, 6, 32, 8
START, GOAL = (ROWS - 1) * COLUMNS, ROWS * COLUMNS - 1  # the cliff lies between them
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
SHORTEST = COLUMNS + 1


def moved(states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the next states, the rewards, and where a walk has ended."""
    row, column = np.divmod(states, COLUMNS)
    row = np.clip(row + MOVES[actions, 0], 0, ROWS - 1)
    column = np.clip(column + MOVES[actions, 1], 0, COLUMNS - 1)
    after = row * COLUMNS + column
    fell = (row == ROWS - 1) & (column > 0) & (column < COLUMNS - 1)
    return after, np.where(fell, -2.0, -0.1), fell | (after == GOAL)


def network(seed: int) -> Network:
    cells = ROWS * COLUMNS
    return (
        SequentialBuilder(cell=(cells,), seed=seed)
        .dense(32)
        .tanh()
        .name("seen")
        .dense(4)
        .output("actor")
        .at("seen")
        .dense(1)
        .output("critic")
        .build()
    )


def walk(model: Network) -> float:
    """The sum of rewards on the way that the actor likes best."""
    state, total = np.array([START]), 0.0
    for _ in range(3 * SHORTEST):
        scores = model.predict(np.eye(ROWS * COLUMNS)[state])["actor"]
        state, reward, ended = moved(state, scores.argmax(axis=1))
        total += float(reward[0])
        if ended[0]:
            break
    return total


def trained(seed: int, steps: int, discount: float) -> float:
    """Train a network and return the cost of its walk."""
    model, optimizer, rng = network(seed), Adam(0.01), np.random.default_rng(seed)
    states, one_hot = np.full(WORLDS, START), np.eye(ROWS * COLUMNS)
    for step in range(steps):
        seen, chosen, rewards, ends = [], [], [], []
        for _ in range(STEPS):
            p = softmax(model.predict(one_hot[states])["actor"])
            actions = (p.cumsum(axis=1) < rng.random((WORLDS, 1))).sum(axis=1).clip(max=3)
            seen.append(states)
            states, reward, ended = moved(states, actions)
            chosen.append(actions)
            rewards.append(reward)
            ends.append(ended)
            states = np.where(ended, START, states)
        R = model.predict(one_hot[states])["critic"][:, 0]
        returns = np.empty((STEPS, WORLDS))
        for t in reversed(range(STEPS)):
            R = returns[t] = rewards[t] + discount * R * ~ends[t]
        scores, v = model.forward(one_hot[np.concatenate(seen)])
        p, error = softmax(scores), v - returns.reshape(-1, 1)
        taken = np.eye(4)[np.concatenate(chosen)]
        log_p = np.log(p + 1e-8)
        doubt = -(p * log_p).sum(axis=1, keepdims=True)  # the entropy, which should not vanish
        weight = 0.02 * (1 - step / steps)
        d_scores = -error * (p - taken) + weight * p * (log_p + doubt)
        model.backward(d_scores / len(v), error / len(v))
        optimizer.step(model.layers)
    cost = -walk(model)
    print(f"seed {seed}: the walk costs {cost:.1f}, the shortest {0.1 * SHORTEST:.1f}")
    return cost


def main(seeds: int = 3, steps: int = 500, discount: float = 0.95) -> list[float]:
    return [trained(seed, steps, discount) for seed in range(seeds)]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
