"""4 rules, 3 attacks, 3 graphs and 3 seeds: 108 simulations, a table and a picture.

The same command goes on after an interruption.
"""

from torch.nn.functional import cross_entropy

import equipoise as eq


def make(rule, attack, graph, seed):
    digits = eq.data.digits(seed=seed)
    clients = digits.split(eq.data.by_group(digits, 20, p=0.5, seed=seed))
    model = eq.models.logistic_regression(64, 10, seed=seed)
    trainer = eq.LocalSGD(model, cross_entropy, clients, lr=0.15, seed=seed)
    options = {"models": eq.flatten(model).expand(20, -1), "malicious": range(4), "seed": seed}
    metrics = {"error": eq.metrics.ErrorRate(model, digits.test_x, digits.test_y)}
    return eq.Simulator(trainer, graph, rule, attack=attack, metrics=metrics, total=100, **options)


rules = [eq.FedAvg(), eq.Median(), eq.SCClip(), eq.Balance()]
attacks = [None, eq.attacks.Gaussian(), eq.attacks.TrimAttack()]
graphs = [eq.Topology.ring(20), eq.Topology.regular(20, 10, seed=0), eq.Topology.complete(20)]
results = eq.sweep(make, rule=rules, attack=attacks, graph=graphs, seed=range(3), folder="grid")
print(results.table("rule", "attack"))
eq.plots.heatmap(results.table("rule", "attack")).figure.savefig("grid.png")
