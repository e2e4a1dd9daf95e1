"""How often gates on benchmarks promote a model that is as good as the champion, and one that is truly better.

200 pairs of models are drawn for each line. A model is right in a document if its draw is below its accuracy. The draws
of two models are the same in a share of the documents, and independent in the others: that share is the correlation of
being right, for models that are equally good. The gate is the real one, on real scores.

`python benchmarks/benchmark_gates.py [--pairs 200]`; two minutes on a core. The line at 2,000 documents, correlation
0.85 and 2 points shows what the project promises: at least 80% of the better models, at most 5% of the equal ones.
"""

from __future__ import annotations

import argparse
import json
import math
import platform

import numpy as np

from gpu_pipelines.artifacts.benchmark_results import MetricResult
from gpu_pipelines.evaluation.benchmarks.scores import DocumentScores
from gpu_pipelines.evaluation.champion.comparison import Comparison
from gpu_pipelines.evaluation.champion.promotion import better
from gpu_pipelines.evaluation.gates import ChampionGate, parse_gate
from gpu_pipelines.evaluation.settings import Ranking

METRIC = "gsm8k.exact_match"
GATES = (f"{METRIC} better_than_champion at 95%", f"{METRIC} better_than_champion by 0.01 at 95%")
ACCURACY = 0.6
DOCUMENTS = 2000
CORRELATIONS = (0.95, 0.85, 0.7, 0.5, 0.3, 0.0)
PROMISED = 0.85


def pair(seed: int, documents: int, correlation: float, gain: float, accuracy: float = ACCURACY) -> Comparison:
    """Scores of two models on the same documents; in the long run the first is right in `gain` more of them.

    Args:
        seed: the seed of the draws.
        documents: the number of documents.
        correlation: the correlation of being right in a document, for two models that are equally good.
        gain: how much more often the first is right.
        accuracy: the accuracy of the second.
    """
    generator = np.random.default_rng(seed)
    shared = generator.random(documents)
    is_shared = generator.random(documents) < correlation
    found = []
    for share in (accuracy + gain, accuracy):
        right = np.where(is_shared, shared, generator.random(documents)) < share
        result = MetricResult(float(right.mean()), True, "mean", right.astype(float).tolist())
        found.append(DocumentScores("gsm8k", documents, {"exact_match": result}))
    return Comparison(found[0], found[1], 1)


def promoted(
    gate: str, pairs: int, documents: int, correlation: float, gain: float, accuracy: float = ACCURACY
) -> float:
    """The share of pairs for which a gate promotes the first model."""
    asked = parse_gate(gate, {}, with_benchmarks=True)
    assert isinstance(asked, ChampionGate)
    drawn = (pair(seed, documents, correlation, gain, accuracy) for seed in range(pairs))
    return sum(better(asked, each.ours, each, Ranking(METRIC, True)).passed for each in drawn) / pairs


def differing(correlation: float, accuracy: float = ACCURACY) -> float:
    """The share of documents in which only one of two equally good models is right."""
    return 2 * accuracy * (1 - accuracy) * (1 - correlation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    results: dict[str, float] = {}
    print(f"{DOCUMENTS:,} documents, accuracy {ACCURACY:.0%}, {pairs} pairs a line; promoted\n")
    print(
        "| correlation | one alone is right, of equal models | gate | equal models "
        "| better by 2 points | better by 5 points |"
    )
    print("|---|---|---|---|---|---|")
    for correlation in CORRELATIONS:
        for gate in GATES:
            shares = [promoted(gate, pairs, DOCUMENTS, correlation, gain) for gain in (0.0, 0.02, 0.05)]
            asked = gate.removeprefix(f"{METRIC} better_than_champion ")
            shown = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {correlation:g} | {differing(correlation):.1%} | {asked} | {shown} |", flush=True)
            for gain, share in zip((0, 2, 5), shares, strict=True):
                results[f"correlation {correlation:g}, {asked}, gain {gain}"] = share
    equal, gained = (results[f"correlation {PROMISED:g}, at 95%, gain {gain}"] for gain in (0, 2))
    goals = {
        "equal models promoted, at most 5%": equal <= 0.05,
        "better by 2 points promoted, at least 80%": gained >= 0.8,
    }
    print("\n" + "\n".join(f"{'reached' if reached else 'MISSED'}: {goal}" for goal, reached in goals.items()))
    most = math.sqrt(0.25 / pairs)
    print(f"each share is known to about {2 * most:.0%}")
    machine = f"{platform.machine()}, {platform.system()}"
    print(json.dumps({"benchmark": "benchmark_gates", "machine": machine, "results": results, "ratios": {}}))


if __name__ == "__main__":
    main()
