"""Rows with their neighbours, from every kind of stored array."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput, PatchSamples, RowSamples, TileSamples, WholeSamples
from runner_core.data.cache.storage import FlatArray, LiveArray, LiveRecords, PreparedStore
from runner_core.data.samples import refuse_differing_fields
from runner_core.testing.case import sent


def store_of(tmp_path, arrays, device=False):
    """Store over flat files of the named lists of arrays, one array a record."""
    stored = {}
    for name, records in arrays.items():
        path = tmp_path / f"{name}.bin"
        path.write_bytes(b"".join(np.ascontiguousarray(a).tobytes() for a in records))
        stored[name] = FlatArray(path, records[0].dtype, [a.shape for a in records])
    count = len(next(iter(arrays.values())))
    return PreparedStore([f"r{i}" for i in range(count)], [{}] * count, stored, "", device=device)


def filled(samples, indices):
    out = {n: np.empty((len(indices), *s.shape), s.dtype) for n, s in samples.spec.items()}
    samples.fill(np.asarray(indices), np.arange(len(indices)), 0, 0, out)
    return out


@settings(deadline=None)  # the machine is shared
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    offsets=st.lists(st.integers(-4, 4), min_size=1, max_size=5),
    data=st.data(),
)
def test_neighbours_stay_within_their_record(tmp_path_factory, lengths, offsets, data):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (n, 2, 3), dtype=np.uint8) for n in lengths]
    records = data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True))
    store = store_of(tmp_path_factory.mktemp("rows"), {"image": images, "mask": [i[:, :1] > 9 for i in images]})
    samples = RowSamples(store, {"image": offsets, "mask": (0,)}, records)
    expected = [(r, i) for r in records for i in range(lengths[r])]
    assert len(samples) == len(expected)
    assert samples.spec["image"] == ((len(offsets), 2, 3), np.dtype(np.uint8))
    indices = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=8)) if expected else []
    out = filled(samples, np.asarray(indices, np.int64))
    for n, index in enumerate(indices):
        record, row = expected[index]
        image = images[record]
        near = [image[min(max(row + o, 0), len(image) - 1)] for o in offsets]
        assert np.array_equal(out["image"][n], near)
        assert np.array_equal(out["mask"][n, 0], image[row, :1] > 9)
        assert out["record"][n] == record


@pytest.mark.parametrize(
    "made",
    [
        lambda store: RowSamples(store, {"image": (-1, 0, 1), "mask": (0,)}, [0, 1, 2]),
        lambda store: PatchSamples(store, ["image", "mask"], (3, 4), [0, 1, 2], 2),
        lambda store: TileSamples(store, ["image", "mask"], (3, 4), [0, 1, 2], stride=(3, 4)),
    ],
    ids=["rows", "patches", "tiles"],
)
def test_what_is_prepared_at_each_read_is_so_once_for_all_fields(tmp_path, made):
    """A loader written by hand does so too, and `ablate` compares a cache with it."""
    rng = np.random.default_rng(0)
    arrays = {name: [rng.integers(0, 99, (6, 8), np.uint8) for _ in range(3)] for name in ("image", "mask")}
    prepared = []

    def pipeline(record):
        prepared.append(record)
        return SimpleNamespace(arrays={name: own[record] for name, own in arrays.items()})

    live = LiveRecords(pipeline, [0, 1, 2])
    stored = {name: LiveArray(live, name, np.dtype(np.uint8), [(6, 8)] * 3) for name in arrays}
    samples = made(PreparedStore(["r0", "r1", "r2"], [{}] * 3, stored, ""))
    own = samples.record_of_sample
    one_by_one = [int(np.flatnonzero(own == record)[k]) for k in (0, 1) for record in range(3)]  # 0 1 2 0 1 2
    found, true = filled(samples, one_by_one), filled(made(store_of(tmp_path, arrays)), one_by_one)
    for name in samples.spec:
        np.testing.assert_array_equal(found[name], true[name])
    assert len(prepared) == (3 if isinstance(samples, RowSamples) else 6)


def test_chosen_rows_only(tmp_path):
    images = [np.arange(n * 2, dtype=np.int16).reshape(n, 2) for n in (4, 3)]
    store = store_of(tmp_path, {"image": images})
    samples = RowSamples(store, {"image": (0,)}, [1, 0], rows=[np.array([2]), np.array([0, 3])])
    assert filled(samples, [0, 1, 2])["image"][:, 0].tolist() == [[4, 5], [0, 1], [6, 7]]
    with pytest.raises(ValueError, match=r"rows of r1 must lie in 0…2"):
        RowSamples(store, {"image": (0,)}, [1], rows=[np.array([3])])


def test_on_the_device_only_numbers_travel(tmp_path):
    images = [np.zeros((n, 2), np.uint8) for n in (4, 3)]
    samples = RowSamples(store_of(tmp_path, {"image": images}, device=True), {"image": (-1, 0, 1)}, [0, 1])
    assert set(samples.spec) == {"row", "record"}
    out = filled(samples, [0, 3, 4, 6])
    assert out["row"].tolist() == [0, 3, 4, 6]
    assert out["record"].tolist() == [0, 0, 1, 1]
    assert samples.record_rows.tolist() == [0, 4, 7]


def test_on_the_device_splits_have_one_set_of_fields(tmp_path):
    store = store_of(tmp_path, {"image": [np.zeros((4, 2), np.uint8)]}, device=True)
    rows, wide = (RowSamples(store, {"image": offsets}, [0]) for offsets in ((0,), (-1, 0, 1)))
    refuse_differing_fields({"train": rows, "validation": RowSamples(store, {"image": [0]}, [0])})
    with pytest.raises(BadInput, match=r"same fields for every split.*\(-1, 0, 1\).*use cache\.mode memory"):
        refuse_differing_fields({"train": rows, "validation": wide})


def test_what_cannot_be_a_batch_is_refused(tmp_path):
    shapes = [np.zeros((2, 3), np.uint8), np.zeros((2, 4), np.uint8)]
    store = store_of(tmp_path, {"image": shapes})
    with pytest.raises(BadInput, match=r"'image' of record r1 has rows of shape \(4,\), others have \(3,\)"):
        RowSamples(store, {"image": (0,)}, [0, 1])
    store = store_of(tmp_path, {"a": [np.zeros((2, 3))], "b": [np.zeros((3, 3))]})
    with pytest.raises(BadInput, match="different numbers of rows"):
        RowSamples(store, {"a": (0,), "b": (0,)}, [0])


def test_any_extension_s_store_will_do():
    """Only the Store protocol is used: an extension may bring its own arrays."""

    class Array:
        dtype, shapes = np.dtype(np.int64), [(2, 1), (3, 1)]

        def take(self, rows, out):
            out[...] = rows[:, None]

    store = SimpleNamespace(arrays={"x": Array()}, keys=["a", "b"], meta=[{}, {}], device=False)
    assert filled(RowSamples(store, {"x": (0, 1)}, [1]), [0, 2])["x"][..., 0].tolist() == [[2, 3], [4, 4]]


@settings(deadline=None)
@given(data=st.data())
def test_patches_are_what_lies_at_some_place_of_their_record(tmp_path_factory, data):
    """Every voxel knows its record and place, so that a patch says where it came from."""
    axes = data.draw(st.integers(1, 3))
    sizes = st.integers(1, 6)
    patch = data.draw(st.tuples(*[sizes] * axes))
    grids = data.draw(st.lists(st.tuples(*[st.integers(p, 8) for p in patch]), min_size=1, max_size=3))
    places = [np.stack(np.indices(g), -1).astype(np.int16) for g in grids]  # (*grid, axes)
    owners = [np.full(g, n, np.uint8) for n, g in enumerate(grids)]
    store = store_of(tmp_path_factory.mktemp("patches"), {"place": places, "owner": owners})
    samples = PatchSamples(store, ["place", "owner"], patch, range(len(grids)), [n + 1 for n in range(len(grids))])
    assert len(samples) == sum(n + 1 for n in range(len(grids)))
    assert samples.spec["place"] == ((*patch, axes), np.dtype(np.int16))
    out = filled(samples, range(len(samples)))
    for n, record in enumerate(out["record"].tolist()):
        assert (out["owner"][n] == record).all()
        start = out["place"][n][(0,) * axes]
        assert np.array_equal(out["place"][n] - start, np.stack(np.indices(patch), -1))


def test_patches_depend_on_seed_epoch_and_position_alone(tmp_path):
    store = store_of(tmp_path, {"x": [np.arange(9**3, dtype=np.int32).reshape(9, 9, 9)]})
    samples = PatchSamples(store, ["x"], (2, 3, 4), [0], 50)

    def drawn(positions, seed=0, epoch=0):
        out = {n: np.empty((len(positions), *s.shape), s.dtype) for n, s in samples.spec.items()}
        samples.fill(np.zeros(len(positions), np.int64), np.asarray(positions), seed, epoch, out)
        return out["x"]

    whole = drawn(range(50))
    assert np.array_equal(drawn([40, 7, 8]), whole[[40, 7, 8]])
    assert not drawn([]).size
    assert not np.array_equal(drawn(range(50), seed=1), whole)
    assert not np.array_equal(drawn(range(50), epoch=1), whole)


def test_every_place_is_as_likely(tmp_path):
    store = store_of(tmp_path, {"x": [np.arange(6 * 4).reshape(6, 4)]})
    samples = PatchSamples(store, ["x"], (4, 3), [0], 6000)
    counts = np.bincount(filled(samples, range(6000))["x"][:, 0, 0], minlength=24)
    assert np.flatnonzero(counts).tolist() == [0, 1, 4, 5, 8, 9]  # 3 × 2 places
    assert ((counts[counts > 0] - 1000) ** 2 / 1000).sum() < 20.5  # χ², 5 degrees of freedom, p = 0.001


def begins(samples, positions, seed=0, epoch=0, index=0):
    """Return where the patches of one sample begin that are drawn at these positions; field "place": (*grid, axes)."""
    out = {n: np.empty((len(positions), *s.shape), s.dtype) for n, s in samples.spec.items()}
    samples.fill(np.full(len(positions), index), np.asarray(positions), seed, epoch, out)
    return out["place"][(slice(None), *(0,) * (out["place"].ndim - 2))]


def places(*grid):
    return np.stack(np.indices(grid), -1).astype(np.int16)


@settings(deadline=None)
@given(data=st.data())
def test_patches_around_coordinates_hold_one_of_their_record(tmp_path_factory, data):
    axes = data.draw(st.integers(1, 4))
    patch = data.draw(st.tuples(*[st.integers(1, 4)] * axes))
    grids = data.draw(st.lists(st.tuples(*[st.integers(p, 6) for p in patch]), min_size=1, max_size=3))
    coordinate = [st.tuples(*[st.integers(0, side - 1) for side in grid]) for grid in grids]
    points = [np.array(data.draw(st.lists(c, max_size=3)), np.int32).reshape(-1, axes) for c in coordinate]
    store = store_of(tmp_path_factory.mktemp("around"), {"place": [places(*g) for g in grids], "points": points})
    samples = PatchSamples(store, ["place"], patch, range(len(grids)), 20, around={"points": 1.0})
    out = filled(samples, range(len(samples)))
    for record, held in zip(out["record"].tolist(), out["place"].reshape(len(samples), -1, axes), strict=True):
        found = (held[:, None] == points[record]).all(-1).any(0)
        assert found.any() or not len(points[record])


def test_each_share_is_drawn_around_its_own(tmp_path):
    arrays = {"place": [places(40, 40)], "a": [np.array([[5, 5]])], "b": [np.array([[20, 30], [34, 6]])]}
    store = store_of(tmp_path, arrays)
    around = {"a": 0.5, "b": 0.25}
    start = begins(PatchSamples(store, ["place"], (3, 2), [0], around=around), range(8000))

    def share(point):
        inside = point - start
        return ((inside >= 0) & (inside < (3, 2))).all(1).mean()

    by_chance = 0.25 * 6 / (38 * 39)
    for point, expected in (((5, 5), 0.5), ((20, 30), 0.125), ((34, 6), 0.125)):
        assert abs(share(point) - expected - by_chance) < 4 * (0.25 / 8000) ** 0.5
    rest = np.array([s for s in start.tolist() if s[0] > 5 and s[1] not in (5, 6, 29, 30)])
    assert len(np.unique(rest, axis=0)) > 500
    alone = begins(PatchSamples(store, ["place"], (3, 2), [0]), range(8000))
    assert 0.24 < (alone == start).all(1).mean() < 0.27  # those that lie anywhere lie where they would without


def test_the_coordinate_is_anywhere_in_its_patch_which_stays_within_the_record(tmp_path):
    store = store_of(tmp_path, {"place": [places(20), places(9)], "points": [np.array([[10]]), np.array([[8]])]})
    samples = PatchSamples(store, ["place"], (6,), [0, 1], around={"points": 1})
    inside = np.bincount(10 - begins(samples, range(6000))[:, 0], minlength=6)
    assert len(inside) == 6
    assert ((inside - 1000) ** 2 / 1000).sum() < 20.5  # χ², 5 degrees of freedom, p = 0.001
    assert (begins(samples, range(50), index=1) == 3).all()  # 8 - 5 at the most, and 3 is the last place


def test_a_record_without_a_coordinate_goes_on_to_the_next_array(tmp_path):
    none = np.empty((0, 1), np.uint16)
    arrays = {
        "place": [places(30)] * 4,
        "a": [none, np.array([[3]], np.uint16), none, none],
        "b": [none, none, np.array([[25]], np.uint16), none],
        "never": [none] * 4,
    }
    store = store_of(tmp_path, arrays)
    samples = PatchSamples(store, ["place"], (1,), [1, 2, 3], around={"a": 0.5, "b": 0.5})
    first, second, third = (begins(samples, range(400), index=i)[:, 0] for i in range(3))
    assert 0.4 < (first == 3).mean() < 0.6  # `b` has none, and is the last: anywhere
    assert (second == 25).all()
    assert len(np.unique(third)) == 30
    samples = PatchSamples(store, ["place"], (1,), [0, 3], around={"never": 1})
    assert len(np.unique(begins(samples, range(400)))) == 30


def test_patches_around_depend_on_seed_epoch_and_position_alone(tmp_path):
    points = np.random.default_rng(0).integers(0, 40, (50, 3)).astype(np.int16)
    store = store_of(tmp_path, {"place": [places(40, 40, 40)], "points": [points]})
    samples = PatchSamples(store, ["place"], (2, 3, 4), [0], around={"points": 0.6})
    whole = begins(samples, range(50))
    assert np.array_equal(begins(sent(samples), [40, 7, 8]), whole[[40, 7, 8]])
    assert len(begins(samples, [])) == 0
    assert not np.array_equal(begins(samples, range(50), seed=1), whole)
    assert not np.array_equal(begins(samples, range(50), epoch=1), whole)


def test_patches_around_are_where_they_were(tmp_path):
    """Changing these numbers changes every run that is resumed: raise a version if you must."""
    store = store_of(tmp_path, {"place": [places(40, 40)], "points": [np.array([[7, 30], [21, 12]])]})
    assert begins(PatchSamples(store, ["place"], (5, 6), [0]), range(3)).tolist() == [[0, 8], [18, 9], [9, 6]]
    samples = PatchSamples(store, ["place"], (5, 6), [0], around={"points": 0.8})
    assert begins(samples, range(4)).tolist() == [[7, 29], [5, 29], [6, 29], [5, 29]]


@pytest.mark.parametrize(
    ("around", "message"),
    [
        ({"a": 0.7, "b": 0.4}, "at most 1 in total"),
        ({"a": -0.1}, "must be 0 or more"),
        ({"a": float("nan")}, "must be 0 or more"),
        ({"c": 0.5}, "around 'c': `prepare` gives place, a, b, real, wide, flat"),
        ({"real": 0.5}, "around 'real': coordinates are integers, these are float64"),
        ({"wide": 0.5}, r"'wide': that of record r1 has shape \(2, 3\), not \(coordinates, 2\), for the 2 axes"),
        ({"flat": 0.5}, r"'flat': that of record r0 has shape \(4,\)"),
    ],
)
def test_around_what_is_none_is_refused(around, message, tmp_path):
    two = np.zeros((1, 2), np.int64)
    arrays = {
        "place": [places(8, 8)] * 2,
        "a": [two] * 2,
        "b": [two] * 2,
        "real": [two * 1.0] * 2,
        "wide": [two, np.zeros((2, 3), np.int64)],
        "flat": [np.zeros(4, np.int64), two],
    }
    with pytest.raises(BadInput, match=message):
        PatchSamples(store_of(tmp_path, arrays), ["place"], (2, 2), [0, 1], around=around)


@pytest.mark.parametrize("point", [(8, 0), (0, -1)])
def test_a_coordinate_outside_its_record_is_said(point, tmp_path):
    points = [np.zeros((1, 2), np.int32), np.array([point], np.int32)]
    store = store_of(tmp_path, {"place": [places(9, 9), places(8, 9)], "points": points})
    samples = PatchSamples(store, ["place"], (2, 2), [0, 1], around={"points": 1})
    assert len(begins(samples, range(9))) == 9
    with pytest.raises(BadInput, match=rf"'points' of record r1 has .*\({point[0]}, {point[1]}\), outside its"):
        begins(samples, range(9), index=1)


def test_patches_that_cannot_be_cut_are_refused(tmp_path):
    small = {"image": [np.zeros((8, 8, 8), np.uint8), np.zeros((8, 3, 8), np.uint8)]}
    store = store_of(tmp_path, small)
    with pytest.raises(BadInput, match="r1 has a grid of 8 × 3 × 8, smaller than the patch of 4 × 4 × 4"):
        PatchSamples(store, ["image"], (4, 4, 4), [0, 1])
    assert len(PatchSamples(store, ["image"], (4, 4, 4), [0])) == 1  # the small one is not asked for
    store = store_of(tmp_path, {"a": [np.zeros((8, 8))], "b": [np.zeros((8, 9))]})
    with pytest.raises(BadInput, match=r"'b' of record r0 has shape \(8, 9\).*axes of 'a', \(8, 8\)"):
        PatchSamples(store, ["a", "b"], (4, 4), [0])
    with pytest.raises(BadInput, match="patches are cut on the host"):
        PatchSamples(store_of(tmp_path, small, device=True), ["image"], (4, 4, 4), [0])


@pytest.mark.parametrize("patch", [(), (0, 2), (1, 1, 1, 1, 1)])
def test_a_patch_that_cannot_be_is_refused(patch, tmp_path):
    store = store_of(tmp_path, {"x": [np.zeros((2,) * 5)]})
    with pytest.raises(BadInput, match="a patch must have one to 4 sides of 1 or more"):
        PatchSamples(store, ["x"], patch, [0])


@settings(deadline=None)
@given(data=st.data())
def test_tiles_cover_their_record_and_are_zero_beyond_it(tmp_path_factory, data):
    axes = data.draw(st.integers(1, 3))
    patch = data.draw(st.tuples(*[st.integers(1, 5)] * axes))
    stride = data.draw(st.none() | st.tuples(*[st.integers(1, p) for p in patch]))
    grids = data.draw(st.lists(st.tuples(*[st.integers(1, 8)] * axes), min_size=1, max_size=3))
    records = data.draw(st.lists(st.sampled_from(range(len(grids))), min_size=1, unique=True))
    images = [1 + np.arange(np.prod(g) * 2, dtype=np.int16).reshape(*g, 2) for g in grids]
    store = store_of(tmp_path_factory.mktemp("tiles"), {"image": images, "first": [i[..., 0] for i in images]})
    samples = TileSamples(store, ["image", "first"], patch, records, stride=stride)
    out = {n: np.full((len(samples), *s.shape), -9, s.dtype) for n, s in samples.spec.items()}
    samples.fill(np.arange(len(samples)), np.arange(len(samples)), 0, 0, out)
    steps = stride or patch
    for record in records:
        own = np.flatnonzero(out["record"] == record)
        begins = [range(0, max(1, g - p + s), s) for g, p, s in zip(grids[record], patch, steps, strict=True)]
        assert [tuple(s) for s in samples.starts[own].tolist()] == list(product(*begins))
        padded = np.pad(images[record], [*((0, p) for p in patch), (0, 0)])
        seen = np.zeros(grids[record], int)
        for n in own:
            region = tuple(slice(s, s + p) for s, p in zip(samples.starts[n], patch, strict=True))
            assert np.array_equal(out["image"][n], padded[region])
            assert np.array_equal(out["first"][n], padded[region][..., 0])
            seen[region] += 1
        assert seen.min() >= 1
        assert stride or seen.max() == 1


def test_tiles_without_a_mark_are_left_out(tmp_path):
    labels = [np.zeros((5, 4), np.uint8), np.zeros((4, 4), np.uint8), np.ones((3, 3), np.uint8)]
    labels[0][4, 1] = 7
    images = [np.stack([label] * 3, -1).astype(np.float16) for label in labels]
    store = store_of(tmp_path, {"image": images, "label": labels})
    by_name = TileSamples(store, ["image"], (2, 2), [0, 1, 2], keep="label")
    assert by_name.starts.tolist() == [[4, 0], [0, 0], [0, 2], [2, 0], [2, 2]]
    assert by_name.record_of_sample.tolist() == [0, 2, 2, 2, 2]
    by_function = TileSamples(store, ["image"], (2, 2), [0, 1, 2], keep=lambda record: labels[record] == 7)
    assert by_function.starts.tolist() == [[4, 0]]
    assert filled(by_function, [0])["image"][0, :, :, 0].tolist() == [[0, 7], [0, 0]]
    assert not len(TileSamples(store, ["image"], (2, 2), [1], keep="label"))


def test_tiles_travel_to_workers(tmp_path):
    store = store_of(tmp_path, {"x": [np.arange(30).reshape(5, 6)]})
    samples = TileSamples(store, ["x"], (4, 4), [0], keep=lambda record: np.ones((5, 6)))
    assert np.array_equal(filled(sent(samples), [3, 1])["x"], filled(samples, [3, 1])["x"])


@pytest.mark.parametrize("stride", [(5, 4), (0, 4), (4,)])
def test_tiles_with_gaps_are_refused(stride, tmp_path):
    store = store_of(tmp_path, {"x": [np.zeros((8, 8))]})
    with pytest.raises(BadInput, match="leaves gaps between patches of 4 × 4"):
        TileSamples(store, ["x"], (4, 4), [0], stride=stride)


def test_tiles_on_the_device_are_refused(tmp_path):
    with pytest.raises(BadInput, match="patches are cut on the host"):
        TileSamples(store_of(tmp_path, {"x": [np.zeros((8, 8))]}, device=True), ["x"], (4, 4), [0])


@settings(deadline=None)  # the machine is shared
@given(data=st.data())
def test_a_whole_record_is_a_sample(tmp_path_factory, data):
    rng = np.random.default_rng(0)
    images, labels = ([rng.random(shape, np.float32) for _ in range(5)] for shape in ((3, 4, 2), (1,)))
    store = store_of(tmp_path_factory.mktemp("whole"), {"image": images, "label": labels})
    records = data.draw(st.lists(st.integers(0, 4), min_size=1, unique=True))
    samples = WholeSamples(store, records)
    assert len(samples) == len(records)
    indices = data.draw(st.lists(st.integers(0, len(records) - 1), min_size=1))
    out = filled(samples, indices)
    assert out["record"].tolist() == [records[i] for i in indices]
    assert np.array_equal(out["image"], np.stack([images[records[i]] for i in indices]))
    assert np.array_equal(out["label"], np.stack([labels[records[i]] for i in indices]))
    assert set(WholeSamples(store, records, ["label"]).spec) == {"label", "record"}


def test_whole_records_of_other_shapes_are_refused_by_name(tmp_path):
    store = store_of(tmp_path, {"image": [np.zeros(s) for s in ((4, 4), (4, 4), (4, 5))]})
    assert len(WholeSamples(store, [0, 1])) == 2
    with pytest.raises(BadInput, match=r"'image' of record r2 has the shape \(4, 5\), that of r0 has \(4, 4\)"):
        WholeSamples(store, [0, 1, 2])
    with pytest.raises(BadInput, match=r"cache\.mode to memmap or memory"):
        WholeSamples(store_of(tmp_path, {"image": [np.zeros((4, 4))]}, device=True), [0])
