import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import Stage
from orchestrator.training.batches import BatchOrder, in_slices, micro_batches


def batch(order: BatchOrder, k: int, start: int = 0, stop: int | None = None) -> torch.Tensor:
    ((index,),) = order.walk(range(k, k + 1), start, stop)
    return index


@given(st.integers(1, 40), st.data())
def test_batches_walk_through_whole_epochs(size: int, data: st.DataObject) -> None:
    batch_size = data.draw(st.integers(1, size))
    order = BatchOrder(size=size, stage=Stage(batch_size=batch_size), seed=3)
    # As many batches as examples are a whole number of epochs: each example as often as any other.
    seen = torch.cat([index for (index,) in order.walk(range(size))])
    for epoch in seen.split(size):
        assert sorted(epoch.tolist()) == list(range(size))


@given(st.integers(1, 60), st.integers(0, 100), st.integers(1, 9), st.booleans())
def test_slices_add_up_to_the_batch(batch_size: int, k: int, ranks: int, endless: bool) -> None:
    order = BatchOrder(size=None if endless else 60, stage=Stage(batch_size=batch_size), seed=0)
    slices = in_slices(batch_size, ranks)
    together = torch.cat([batch(order, k, *piece) for piece in slices])
    assert together.tolist() == batch(order, k).tolist()


@given(st.integers(0, 50), st.integers(1, 60) | st.none())
def test_micro_batches_add_up_to_the_slice(size: int, micro_batch: int | None) -> None:
    pieces = micro_batches(size, micro_batch)
    assert [i for start, stop in pieces for i in range(start, stop)] == list(range(size))
    assert all(stop - start <= (micro_batch or size) for start, stop in pieces)
    assert pieces, "every rank takes part in every step"


def test_order_is_a_function_of_seed_and_batch_alone() -> None:
    visited = BatchOrder(size=10, stage=Stage(batch_size=4), seed=7)
    long_walk = [index for (index,) in visited.walk(range(200))]
    for k in (190, 5, 64):
        fresh = BatchOrder(size=10, stage=Stage(batch_size=4), seed=7)
        assert batch(fresh, k).tolist() == batch(visited, k).tolist() == long_walk[k].tolist()
    other = BatchOrder(size=10, stage=Stage(batch_size=4), seed=8)
    assert batch(other, 5).tolist() != long_walk[5].tolist()
