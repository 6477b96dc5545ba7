"""Coverage of the report's intervals: `python -m tests.benchmarks.coverage [EXPERIMENTS]`, a quarter of an hour.

Prints the rows of `pipeline.coverage.TABLE`: so many simulated experiments (`tests.pipeline.simulated`) a number of
pre-training seeds, half of them with straight curves and half with saturating ones. The binomial error of a share of
.95 is .01 with 500.
"""

import sys

from pipeline import coverage
from tests.pipeline import simulated


def main(experiments: int) -> None:
    for row in coverage.TABLE:
        halves = [simulated.coverage(row.seeds, experiments // 2, curve) for curve in simulated.CURVES]
        shares = {kind: sum(half[kind] for half in halves) / len(halves) for kind in halves[0]}
        print(
            f"    Coverage(seeds={row.seeds}, {', '.join(f'{kind}={share:.3f}' for kind, share in shares.items())}),",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else coverage.EXPERIMENTS)
