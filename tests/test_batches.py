import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.training.batches import BatchOrder, cut, micro_batches


@given(st.integers(1, 40), st.data())
def test_batches_walk_through_whole_epochs(size: int, data: st.DataObject) -> None:
    batch_size = data.draw(st.integers(1, size))
    order = BatchOrder(size=size, batch_size=batch_size, seed=3)
    # As many batches as examples are a whole number of epochs: each example as often as any other.
    seen = torch.cat([order.indices(k) for k in range(size)])
    for epoch in seen.split(size):
        assert sorted(epoch.tolist()) == list(range(size))


@given(st.integers(1, 60), st.integers(0, 30), st.integers(1, 9))
def test_slices_add_up_to_the_batch(batch_size: int, k: int, ranks: int) -> None:
    def order() -> BatchOrder:
        return BatchOrder(size=60, batch_size=batch_size, seed=0)

    slices = cut(batch_size, ranks)
    together = torch.cat([order().indices(k, *piece) for piece in slices])
    assert together.tolist() == order().indices(k).tolist()


@given(st.integers(0, 50), st.integers(1, 60) | st.none())
def test_micro_batches_add_up_to_the_slice(size: int, micro_batch: int | None) -> None:
    pieces = micro_batches(size, micro_batch)
    assert [i for start, stop in pieces for i in range(start, stop)] == list(range(size))
    assert all(stop - start <= (micro_batch or size) for start, stop in pieces)
    assert pieces, "every rank takes part in every step"


def test_order_is_a_function_of_seed_and_batch_alone() -> None:
    visited = BatchOrder(size=10, batch_size=4, seed=7)
    for k in (9, 0, 3):
        visited.indices(k)
    fresh = BatchOrder(size=10, batch_size=4, seed=7)
    assert visited.indices(5).tolist() == fresh.indices(5).tolist()
    other = BatchOrder(size=10, batch_size=4, seed=8)
    assert other.indices(5).tolist() != fresh.indices(5).tolist()
