"""The bucket plan: each gradient once, one dtype per bucket, no bucket too large, in the order in which they fill."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankwise.contract.types import DType
from rankwise.overlap.plan import ALIGNED, BucketLayout, GradientSpec, plan

PARAMETERS = st.lists(
    st.builds(
        GradientSpec,
        st.lists(st.integers(0, 40), max_size=3).map(tuple),
        st.sampled_from([DType.F32, DType.F64, DType.BF16, DType.C128]),
    ),
    max_size=30,
)


def test_small_gradients_share_a_bucket_and_large_ones_do_not() -> None:
    parameters = [GradientSpec((16,), DType.F32), GradientSpec((1000,), DType.F32), GradientSpec((3, 4), DType.F32)]
    assert plan(parameters, [2, 1, 0], 256) == [
        BucketLayout(DType.F32, (2,), (0,), 16),
        BucketLayout(DType.F32, (1,), (0,), 1008),
        BucketLayout(DType.F32, (0,), (0,), 16),
    ]
    assert plan(parameters, [2, 0, 1], 256) == [
        BucketLayout(DType.F32, (2, 0), (0, 16), 32),
        BucketLayout(DType.F32, (1,), (0,), 1008),
    ]
    assert plan([], [], 1) == []


def test_buckets_of_two_dtypes_fill_side_by_side() -> None:
    parameters = [GradientSpec((8,), DType.F64 if number % 2 else DType.F32) for number in range(6)]
    assert [layout.members for layout in plan(parameters, range(6), 128)] == [(0, 2), (1, 3), (4,), (5,)]


@given(PARAMETERS, st.randoms(), st.integers(1, 20_000))
def test_any_plan(parameters: list[GradientSpec], random: object, most: int) -> None:
    order = list(range(len(parameters)))
    random.shuffle(order)  # type: ignore[attr-defined]
    layouts = plan(parameters, order, most)
    assert sorted(number for layout in layouts for number in layout.members) == sorted(order)
    assert [order.index(layout.members[-1]) for layout in layouts] == sorted(
        order.index(layout.members[-1]) for layout in layouts
    )
    for layout in layouts:
        ends = 0
        for number, offset in zip(layout.members, layout.offsets, strict=True):
            assert parameters[number].dtype is layout.dtype
            assert offset >= ends
            assert offset * layout.dtype.itemsize % ALIGNED == 0
            ends = offset + parameters[number].count
        assert layout.count >= ends
        assert len(layout.members) == 1 or layout.count * layout.dtype.itemsize <= most
