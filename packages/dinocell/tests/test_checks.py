"""`check` reports fields that can be read and still look wrong, and the set of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tifffile
from runner_core import LEFT_OUT, BadInput, Url, collect_left_out
from runner_dinocell import checks
from runner_dinocell.config import CellConfig, CellDataConfig
from runner_dinocell.fields import Field
from runner_dinocell.files import find_records
from runner_dinocell.project import DinoCell
from scipy import ndimage

Plates = Callable[..., Path]
Grey = Callable[..., np.ndarray]


def field(folder: Path, *images: np.ndarray) -> Field:
    files = {}
    for number, image in enumerate(images, 1):
        files[str(number)] = folder / f"{number}.tif"
        tifffile.imwrite(files[str(number)], image, photometric="minisblack")
    return Field("P/A01/1", "P", files, plate="P", well="A01", site="1", channels=tuple(files))


def found(record: Field) -> dict[str, str]:
    """Messages by rule, joined."""
    messages: dict[str, list[str]] = {}
    for finding in checks.findings(record, CellDataConfig(window=32)):
        assert finding.level != "error"
        messages.setdefault(finding.rule, []).append(f"{finding.level}: {finding.message}")
    return {rule: " | ".join(texts) for rule, texts in messages.items()}


def of_set(records: Sequence[Field]) -> dict[str, str]:
    messages: dict[str, list[str]] = {}
    for finding in checks.set_findings(records):
        messages.setdefault(finding.rule, []).append(f"{finding.level}: {finding.message}")
    return {rule: " | ".join(texts) for rule, texts in messages.items()}


# ---------------------------------------------------------------- one field


def test_real_fields_have_no_findings(real_plate: Path, config: CellConfig) -> None:
    records = find_records(real_plate, config)
    assert [found(record) for record in records] == [{}] * 6
    assert of_set(records) == {}


def test_the_phantom_has_no_findings(small_phantom: Path, config: CellConfig) -> None:
    """Two files cannot be read; nothing else is reported."""
    records = find_records(small_phantom, config)
    broken = 0
    for record in records:
        try:
            assert found(record) == {}
        except BadInput:
            broken += 1
    assert broken == 2
    assert of_set(records) == {}


def test_8_bits_scaled_up(tmp_path: Path, grey: Grey) -> None:
    image = grey((64, 64))
    byte = (255 * (image / image.max())).astype(np.uint8)
    for scaled in (byte.astype(np.uint16) * 257, byte.astype(np.uint16) << 8, (byte * 40.3).astype(np.uint16)):
        said = found(field(tmp_path, scaled, image))["depth"]
        assert said.startswith(f"warning: channel 1: only {len(np.unique(scaled))} grey values between")
        assert "8 bits that were scaled up" in said
        assert "channel 2" not in said
    assert "no value above 255, as of 8 bits" in found(field(tmp_path, byte.astype(np.uint16), image))["depth"]


def test_12_bits_of_a_16_bit_file_are_enough(tmp_path: Path, grey: Grey) -> None:
    image = grey((64, 64), top=50_000) >> 4
    assert found(field(tmp_path, image << 4, image + 300)) == {}


def test_8_bits_are_noted(tmp_path: Path, grey: Grey) -> None:
    """Once a field."""
    byte = (grey((64, 64)) >> 4).astype(np.uint8)
    said = found(field(tmp_path, byte, byte // 2))
    assert said == {"depth": "note: 8 bits a pixel, where a microscope's own images have 12 to 16."}


def test_few_and_one_grey_value(tmp_path: Path, grey: Grey) -> None:
    said = found(field(tmp_path, np.full((64, 64), 700, np.uint16), (grey((64, 64)) >> 9) + 300))["grey"]
    assert "channel 1: every pixel is 700: there is nothing to see" in said
    assert "channel 2: only" in said


def test_saturated(tmp_path: Path, grey: Grey) -> None:
    image = grey((64, 64))
    bright = np.minimum(image, np.quantile(image, 0.9).astype(np.uint16))
    said = found(field(tmp_path, bright, image))["saturated"]
    share = np.mean(bright == bright.max())
    expected = f"{share:.1%} of the pixels have the brightest value, {bright.max()}: saturated."
    assert said == f"warning: channel 1: {expected}"


def test_a_fault_is_said_once_for_all_channels(tmp_path: Path, grey: Grey) -> None:
    image = grey((64, 64)) >> 4
    bright = np.minimum(image, 90)
    (said,) = [
        f
        for f in checks.findings(field(tmp_path, bright, bright + 1, image), CellDataConfig(window=32))
        if f.rule == "depth"
    ]
    assert said.message == (
        f"channel 1: no value above 90; channel 2: no value above 91; channel 3: no value above {image.max()}, "
        "as of 8 bits in a 16-bit file. Export the camera's own."
    )
    same = found(field(tmp_path, image, image, image))["channels"]
    assert same == "warning: channels 1 and 2, 1 and 3, 2 and 3 are the same image: is one of them there twice?"


def test_one_channel_twice(tmp_path: Path, grey: Grey) -> None:
    said = found(field(tmp_path, grey(seed=1), grey(seed=2), grey(seed=1)))
    assert said == {"channels": "warning: channels 1 and 3 are the same image: is one of them there twice?"}


def test_nothing_but_noise(tmp_path: Path, grey: Grey) -> None:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[-1:1:96j, -1:1:96j]
    shaded = [((400 + 20 * rng.standard_normal((96, 96))) * (1 - 0.3 * (x**2 + y**2))).astype(np.uint16) for _ in "ab"]
    assert "no cells in this field" in found(field(tmp_path, *shaded))["empty"]
    cells = _cells(96)
    assert found(field(tmp_path, shaded[0], cells)) == {"empty": "warning: nothing but noise in channel 1."}


def test_out_of_focus(tmp_path: Path, real_plate: Path, config: CellConfig) -> None:
    record = find_records(real_plate, config)[0]
    rng = np.random.default_rng(0)
    blurred = []
    for path in list(record.files.values())[:3]:
        soft = ndimage.gaussian_filter(tifffile.imread(path).astype(float), 6)
        blurred.append(np.rint(soft + np.sqrt(0.3 * soft) * rng.standard_normal(soft.shape)).astype(np.uint16))
    assert found(field(tmp_path, *blurred)) == {
        "focus": "warning: no channel has fine structures: the field is out of focus."
    }


def _cells(side: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    structure = ndimage.gaussian_filter(rng.standard_normal((side, side)), 2)
    return np.rint(600 + 2000 * np.abs(structure) + 10 * rng.standard_normal((side, side))).astype(np.uint16)


def test_noise_is_measured_as_noise() -> None:
    """White noise has 1 in its own units, whatever its size."""
    rng = np.random.default_rng(0)
    for size in (3.0, 300.0):
        signal, _ = checks.structure((5000 + size * rng.standard_normal((512, 512))).astype(np.uint16))
        assert signal == pytest.approx(1, abs=0.1)


# ---------------------------------------------------------------- all together


def test_8_bits_among_16(write_plates: Plates, config: CellConfig, grey: Grey) -> None:
    """An error that names them: no record shows it alone."""
    root = write_plates({"P": 2, "Q": 2})
    for channel in (1, 2):
        tifffile.imwrite(root / f"Q/Q_A02_site1_Ch{channel}.tif", (grey() >> 4).astype(np.uint8))
    said = of_set(find_records(root, config))
    assert list(said) == ["depth"]
    assert said["depth"].startswith("error: 1 field of 8 bits a pixel among those of 16: ")
    assert "Q_A02_site1_Ch1.tif" in said["depth"]


def test_a_set_of_8_bits_alone_is_accepted(write_plates: Plates, config: CellConfig) -> None:
    root = write_plates({"P": 1, "Q": 1})
    for path in root.rglob("*.tif"):
        tifffile.imwrite(path, (tifffile.imread(path) >> 4).astype(np.uint8))
    assert of_set(find_records(root, config)) == {}


def test_other_sizes(write_plates: Plates, config: CellConfig, grey: Grey) -> None:
    root = write_plates({"P": 3})
    tifffile.imwrite(root / "P/P_A02_site1_Ch1.tif", grey((40, 40)))
    said = of_set(find_records(root, config))["size"]
    assert said.startswith("warning: 1 field of another size than 40 × 48 pixels: ")
    assert "P_A02_site1_Ch1.tif (40 × 40)" in said


def test_channels_that_differ(write_plates: Plates, config: CellConfig) -> None:
    """A field without one, and plates with more than the others."""
    root = write_plates({"P": 3, "Q": 3}, channels=3)
    for path in root.glob("P/*_Ch3.tif"):
        path.unlink()
    (root / "Q/Q_A02_site1_Ch2.tif").unlink()
    said = of_set(find_records(root, config))["channels"]
    assert "note: channel 3 is not used; 1 plate with it: Q." in said
    assert "warning: 1 field without channel 2: Q/A02/1." in said


def test_labels_of_one_plate(write_plates: Plates, config: CellConfig) -> None:
    root = write_plates({"P": 2, "Q": 2})
    (root / "labels.csv").write_text("plate,well,kind\nP,A01,a\nP,A02,b\nQ,A01,a\n")
    said = of_set(find_records(root, config))["labels"]
    assert "note: 3 of 4 fields have a label." in said
    assert "note: 1 label on one plate only: b; no other plate can confirm them." in said
    (root / "labels.csv").write_text("plate,well,kind\nP,A01,a\nP,A02,b\nQ,A01,c\nQ,A02,c\n")
    assert of_set(find_records(root, config))["labels"].startswith("warning: 3 labels on one plate only: a, b, c;")


def test_files_at_urls_are_not_fetched() -> None:
    files = {"1": Url("s3://nowhere/1.tif")}
    records = [Field("P/A01/1", "P", files, plate="P", well="A01", site="1", channels=("1",))]
    assert of_set(records) == {}


# ---------------------------------------------------------------- as the runner calls it


def test_a_field_smaller_than_a_window_is_an_error(write_plates: Plates, config: CellConfig) -> None:
    """Training refuses it."""
    root = write_plates({"P": 1}, shape=(40, 48))
    for window, said in ((40, []), (41, ["40 × 48 pixels, smaller than a window of 41²: set data.window to a side"])):
        config.data.window = window
        project = DinoCell(config)
        (record,) = project.records(root)
        errors = [f.message for f in project.checks().record(record) if f.level == "error"]
        assert [message[: len(said[0])] for message in errors] == said


def test_images_whose_names_say_nothing_are_told_of(write_plates: Plates, config: CellConfig) -> None:
    root = write_plates({"P": 3})
    (root / "P" / "P_A04_site1_C1.tif").touch()
    project = DinoCell(config)
    for _ in range(2):
        with collect_left_out() as left_out:
            assert not list(project.checks().records(project.records(root)))
        (found,) = left_out
        assert (found.level, found.rule) == ("warning", LEFT_OUT)
        assert found.message == "1 of 7 TIFF files is of no known name, P/P_A04_site1_C1.tif for one: left out."
    with collect_left_out() as left_out:
        project.inputs(root / "P" / "P_A01_site1_Ch1.tif")  # nobody asked for the others
        (root / "P" / "P_A04_site1_C1.tif").unlink()
        assert not list(project.checks().records(project.records(root)))
    assert not left_out
