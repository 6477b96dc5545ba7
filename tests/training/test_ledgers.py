"""What several runs cost together: each once, whatever began with whatever."""

import itertools

from training.ledgers import Ledger, total, union


def run(step: int, flops: float) -> Ledger:
    return Ledger(step=step, planned=flops, flops_counted=flops, tokens=int(flops), seconds=1.0)


A3, A5, B, C, D = run(3, 3.0), run(5, 5.0), run(7, 7.0), run(10, 10.0), run(7, 7.0)
OF_A, OF_B, OF_C, OF_D = {"a": A3}, {"a": A3, "b": B}, {"a": A3, "b": B, "c": C}, {"a": A3, "d": D}


def test_a_run_counts_once_however_often_it_is_contained() -> None:
    for several, flops in (
        ([OF_C, OF_A], 20.0),  # c began with b, which began with a
        ([OF_B, OF_D], 17.0),  # both began with a
        ([OF_B, {"a": A5}], 12.0),  # b began with an earlier step of what stands beside it
        ([{"a": A5}, OF_B], 12.0),
        ([OF_A, OF_A], 3.0),
        ([OF_A, {}], 3.0),  # nothing is known of the other
        ([], 0.0),
    ):
        together = union(several)
        assert total(together).flops_counted == total(together).planned == flops
        assert total(together).tokens == int(flops)
    assert union([OF_C, OF_D]) == {"a": A3, "b": B, "c": C, "d": D}
    assert total(union([OF_C, OF_D])).seconds == 4.0


def test_a_sum_does_not_hang_on_the_order_of_fingerprints() -> None:
    costs = (0.1, 0.2, 0.3, 1e16, 3.3)
    sums = {
        total({str(place): run(1, cost) for place, cost in enumerate(order)}).planned
        for order in itertools.permutations(costs)
    }
    assert len(sums) == 1
