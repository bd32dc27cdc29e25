"""Check what a project promises of a trained network: predictions, scores, files, export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np

from runner_core.contract import Array
from runner_core.contract.facets import Combining
from runner_core.contract.project import Project, predicts, views_of
from runner_core.contract.records import Predicted, Record, Table
from runner_core.contract.views import averaged
from runner_core.data.pipeline import CroppedRecord
from runner_core.engines import returned
from runner_core.output.pictures import write_pictures, write_png
from runner_core.testing.case import Case, assert_equal
from runner_core.training.evaluation import Scores, evaluate, over_records, write_scores
from runner_core.training.scoring import Scored, Scorer
from runner_core.training.snapshots import draw_watched, read_watched


def export_writes_files(case: Case) -> None:
    """Check that `export` writes at least one file, and that all exist."""
    written = case.setup.engine.export(case.setup, case.trained[1], case.folder / "export")
    assert written, "export wrote nothing"
    for path in written:
        assert path.exists(), f"export says that it wrote {path}, which does not exist"


def prediction_is_repeatable(case: Case) -> None:
    """Check that two predictions from the same arrays are equal bit for bit, and that the record had labels to omit."""
    _assert_predicts(case)
    labels, record = case.project.dataset.labels, case.validation_record
    names = [*record.files, *record.values]
    assert not labels or set(names) & {*labels}, f"DataSet.labels names no file and no value of the record: {names}"
    one, (given, _) = case.prediction, case.predicted
    try:
        assert_equal(one, case.predict(given), "predict, called again with what the first call was given,")
    except AssertionError:  # is it the arrays that it was given, or chance?
        assert_equal(one, case.predict(case.cropped()), "predict, called twice")
        raise


def soft_output_can_be_combined(case: Case) -> None:
    """Check that `predict` is `decide` of `soft`, and that `soft` and `labels` are as `combining` declares them."""
    infer = case.network.infer  # first: `combining` may use statistics
    combining = case.project.combining()
    if combining is None:
        raise SkipTest(f"{case.kind.name} has no `combining`: its predictions cannot be averaged")
    cropped = case.cropped()
    soft = averaged(combining.soft, cropped, infer, views_of(case.project))
    assert soft, "soft returned no array"
    kept = {name: array.copy() for name, array in soft.items()}
    assert_equal(combining.decide(cropped, soft), case.prediction, "decide of soft, beside predict,")
    assert_equal(soft, kept, "soft, after decide,")
    for name, array in soft.items():
        packed = array.dtype == np.uint8 and combining.kind == "probabilities"
        assert packed or array.dtype == np.float32, f"soft: {name!r} is {array.dtype}, not float32"
        assert np.isfinite(array).all(), f"soft: {name!r} is not finite"
        assert array.flags.writeable, f"soft: {name!r} is read-only; sums are taken in it"
    first = next(iter(soft.values()))
    if combining.kind == "probabilities":
        assert len(first) == len(combining.classes), f"{len(first)} probabilities of {len(combining.classes)} classes"
        assert 0 <= first.min() <= first.max() <= (255 if first.dtype == np.uint8 else 1), "no probabilities"
    _assert_labels_fit(case, combining, cropped, first)
    folder = case.folder / "map"
    folder.mkdir()
    if combining.write_map is not None:
        values = (first[0] if combining.kind == "probabilities" else first).astype(np.float32)
        _assert_written("write_map", combining.write_map(cropped, values, folder / "map"), folder)
    if combining.write_members is not None:
        _assert_written("write_members", combining.write_members(cropped, [soft, kept], folder / "members"), folder)


def _assert_written(name: str, written: Sequence[Path], folder: Path) -> None:
    assert written, f"{name} wrote nothing"
    assert all(path.is_file() and folder in path.parents for path in written), f"{name}: {written}"


def views_lead_back(case: Case) -> None:
    """Check that each view changes no array in place, and that what is predicted in it comes back into the grid."""
    infer = case.network.infer
    combining = case.project.combining()
    if combining is None or not combining.views:
        raise SkipTest(f"{case.kind.name} declares no views")
    names = [view.name for view in combining.views]
    assert len({*names} - {"all", "none"}) == len(names), (
        f"names of views must differ, and be none of all, none: {names}"
    )
    assert all(name.split() == [name] for name in names), f"users type the names of views: no spaces in {names}"
    cropped = case.cropped()
    kept = {name: array.copy() for name, array in cropped.prepared.items()}
    for view in combining.views:
        shown = view.apply(cropped)
        assert {*shown} == {*kept}, f"view {view.name!r}: apply returns the arrays {[*shown]}, not {[*kept]}"
        assert any(not np.array_equal(shown[name], kept[name]) for name in kept), f"view {view.name!r} changes nothing"
        assert_equal(dict(cropped.prepared), kept, f"prepared, after view {view.name!r},")
    some = combining.views[:: max(1, len(combining.views) // 2)]  # each takes a whole prediction
    averaged(combining.soft, cropped, infer, some)  # refuses what does not lead back


def _assert_labels_fit(case: Case, combining: Combining, cropped: CroppedRecord, soft: Array) -> None:
    found = None if combining.labels is None else combining.labels(case.validation_record, cropped)
    if combining.labels is None:
        return
    if combining.kind == "embeddings":
        assert found is None or found.shape == (), "labels of embeddings: one text for the whole record, or None"
        return
    assert found is not None, "labels returned None for a record with labels"
    grid = soft.shape[1:] if combining.kind == "probabilities" else soft.shape
    assert found.shape == grid, f"labels lie in the grid {found.shape}, soft in {grid}"
    if combining.kind == "probabilities":
        assert found.dtype.kind == "i", f"labels must be numbers of classes, and can be -1: not {found.dtype}"
        assert -1 <= found.min() <= found.max() < max(2, len(soft)), "labels: there is no such class"
    for name, mask in () if combining.regions is None else combining.regions(case.validation_record, cropped):
        fits = mask.dtype == bool and mask.shape == grid
        assert fits, f"regions: {name} is {mask.dtype} {mask.shape}, not bool {grid}"
    bare = replace(case.validation_record, files=cropped.record.files, values=cropped.record.values)
    if case.project.dataset.labels:
        assert combining.labels(bare, cropped) is None, "labels of a record without labels must be None"


def prediction_is_written_in_its_own_grid(case: Case) -> None:
    """Check that `write` writes into the given folder, in the grid of the record's files, as `grid` returns it."""
    _assert_predicts(case)
    project, record = case.project, case.validation_record
    out = case.folder / "out"
    out.mkdir()
    written = project.write(record, case.prediction, out)
    assert written, "write wrote nothing"
    for path in written:
        assert path.is_file(), f"write says that it wrote {path}, which does not exist"
        assert out in path.parents, f"write wrote {path}, which is outside of {out}"
    grid_of = project.checks().grid
    if grid_of is None:
        raise SkipTest(f"{project.name} has no `grid`: that its files are there is all that can be said of them")
    own = [grid for file in record.files.values() if (grid := grid_of(file)) is not None]
    assert own, f"grid knows none of the record's files: {list(map(str, record.files.values()))}"
    found = {path: grid for path in written if (grid := grid_of(path)) is not None}
    assert found, f"grid knows none of the files that write wrote: {list(map(str, written))}"
    for path, grid in found.items():
        assert _same_grid(grid, own[0]), f"{path.name} has the grid {grid}, its record {own[0]}"


def scores_fit_together(case: Case) -> None:
    """Check that `score`, `baseline`, `judging`, `checks.prediction` and `figure` fit together for a record."""
    _assert_predicts(case)
    project, record = case.project, case.validation_record
    scores = evaluate(case.pipeline, case.network.infer, [record])
    assert not scores.errors, scores.errors
    names = set(scores.rows[0].scores)
    assert set(scores.rows[0].baseline) in (set(), names), "the baseline is scored by other names than the network"
    if project.judging().judge is None:
        assert set(scores.means) == names, f"pooled makes up scores: {set(scores.means) - names}"
        _assert_shown(project, scores)
    _assert_rows_fill_columns(scores.tables)
    for _, finding in scores.remarks:
        assert finding.level != "error", f"a remark is a note or a warning, not an error: {finding}"
    figure = project.pictures().figure
    picture = None if figure is None else figure(record, case.prediction)
    if picture is not None:
        write_png(case.folder / "figure.png", picture)  # refuses anything but a picture
    if project.pictures().layers is not None:
        _assert_layers_fit(project, record, case.prediction)


def _assert_layers_fit(project: Project, record: Record, prediction: Any) -> None:
    """Check that layers lie upon each other, and that those of labels hold no value without a name."""
    pictures = project.pictures()
    assert pictures.layers is not None
    shown, alone = pictures.layers(record, prediction), pictures.layers(record, None)
    assert {layer.name for layer in alone} < {layer.name for layer in shown}, "no layer is the prediction's"
    for layer in shown:
        first = shown[0]
        assert layer.values.shape == first.values.shape, f"layer {layer.name} has not the shape of {first.name}"
        assert (layer.spacing, layer.unit) == (first.spacing, first.unit), f"layer {layer.name} has another spacing"
        assert len(layer.spacing) == layer.values.ndim, f"layer {layer.name} has not one spacing for each axis"
        if layer.labels:
            known = {0, *(label.value for label in layer.labels)}
            assert set(np.unique(layer.values).tolist()) <= known, f"layer {layer.name} has values without a name"


def judgement_fits_together(case: Case) -> None:
    """Check that `judge` returns a consistent result for the records that `scored` names, and the same one again."""
    project, own = case.project, case.project.judging()
    judge = own.judge
    if judge is None:
        assert not own.untrained, "`untrained` is for `judge`, and there is no `judge`"
        raise SkipTest(f"{project.name} has no `judge`")
    _assert_predicts(case)
    given: list[Sequence[Predicted]] = []
    splits = {split: [case.records[n] for n in numbers] for split, numbers in case.data.splits.items()}
    noting = replace(own, judge=lambda predicted: given.append(predicted) or judge(predicted))  # type: ignore[func-returns-value]
    project.judging = lambda: noting  # type: ignore[method-assign]
    try:
        untrained = case.setup.engine.untrained(case.setup, case.trained[1]).infer if own.untrained else None
        scored = own.to_score(splits)
        scores = evaluate(case.pipeline, case.network.infer, scored, untrained=untrained)
    finally:
        del project.judging
    assert 20 * len(scores.errors) <= len(scored), scores.errors  # some files may be damaged, as always
    assert given, "`scored` names no record of the phantom"
    one, other = judge(given[0]), judge(given[0])
    assert one is not None, "`judge` has nothing to say of the phantom's records"
    assert_equal(one, other, "judge, called twice")
    for method, values in {"the baseline": scores.baseline, **scores.further}.items():
        unknown = set(values) - set(scores.means)
        assert not unknown, f"{method} has scores that the trained network has not: {unknown}"
    _assert_shown(project, scores)
    _assert_rows_fill_columns(scores.tables)
    folder = case.folder / "judged"
    folder.mkdir()
    write_pictures(scores.pictures, folder)  # refuses anything but a picture


def what_is_watched_is_drawn(case: Case) -> None:
    """Check that `watch` returns small finite arrays, and `draw_watched` draws pictures from their logged values."""
    project, pictures = case.project, case.project.pictures()
    if pictures.watch is None:
        assert pictures.draw_watched is None, "`draw_watched` draws what `watch` gave, and there is no `watch`"
        return
    network = case.network.network
    arrays = returned.watch(project, network)
    for name, array in arrays.items():
        assert np.isfinite(array).all(), f"watch: {name!r} is not finite"
    assert_equal(arrays, returned.watch(project, network), "watch, called twice")
    kept = {name: array.tolist() for name, array in arrays.items()}
    folder = case.folder / "watched"
    folder.mkdir()
    for steps in ([1], [1, 2]):
        events = [{"event": "watch", "step": step, "arrays": kept} for step in steps]
        draw_watched(project, read_watched(events), folder)  # refuses anything but a picture


def parts_join_to_the_whole(case: Case) -> None:
    """Check that the scores of a few records, kept as text and read again, give the same scores of all, bit for bit."""
    _assert_predicts(case)
    project, judging = case.project, case.project.judging()
    splits = {split: [case.records[n] for n in numbers] for split, numbers in case.data.splits.items()}
    records = judging.to_score(splits)[:_FEW]
    trained = case.network.infer
    wanted = judging.untrained and judging.judge is not None
    untrained = case.setup.engine.untrained(case.setup, case.trained[1]).infer if wanted else None
    scorer = Scorer(case.pipeline, trained, untrained, lambda record: False)
    found = [scorer(record) for record in records]
    lines = [json.loads(one.line(project)) for one in found]
    again = [Scored.of_line(project, record, line) for record, line in zip(records, lines, strict=True)]
    whole, joined = case.folder / "scored-whole", case.folder / "scored-joined"
    for folder, one in ((whole, found), (joined, again)):
        folder.mkdir()
        write_scores(over_records(project, one), folder)
    for file in whole.iterdir():
        assert file.read_bytes() == (joined / file.name).read_bytes(), f"{file.name} of parts is another one"


_FEW = 3
"""Records of which it is shown; each takes a whole prediction."""


def _assert_shown(project: Project, scores: Scores) -> None:
    unknown = set(project.judging().shown) - set(scores.means)
    assert not unknown, f"shown names what is no score: {unknown}"


def _assert_rows_fill_columns(tables: Sequence[Table]) -> None:
    for table in tables:
        wrong = [row for row in table.rows if len(row) != len(table.columns)]
        assert not wrong, f"table {table.name!r} has rows that are not as long as its columns: {wrong[:3]}"


def _assert_predicts(case: Case) -> None:
    if not predicts(case.project):
        raise SkipTest(f"{case.kind.name} has no `predict`")


def _same_grid(one: Any, other: Any) -> bool:
    """Return True if both are equal, numbers to six digits."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same_grid(one[k], other[k]) for k in one)
    numbers, others = np.asarray(one), np.asarray(other)
    if numbers.dtype.kind not in "iuf" or others.dtype.kind not in "iuf":
        return bool(one == other)
    return numbers.shape == others.shape and np.allclose(numbers, others, rtol=1e-6, atol=1e-6)
