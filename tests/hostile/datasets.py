"""Valid data sets, as small as the projects take them, in every format that their readers read."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

AXIS = np.linspace(900.0, 1800.0, 61)


def core(seed: int) -> dict[str, np.ndarray]:
    """The arrays of an infrared core: amide bands in a disc of tissue, three classes annotated on some of it."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1:1:12j, -1:1:14j]
    tissue = x**2 + y**2 < 0.7
    bands = np.exp(-(((AXIS - 1655) / 22) ** 2)) + 0.6 * np.exp(-(((AXIS - 1545) / 22) ** 2))
    spectra = np.where(tissue, rng.uniform(0.5, 1, tissue.shape), 0)[..., None] * bands
    spectra += rng.normal(0, 0.003, spectra.shape)
    labels = np.where(tissue & (rng.random(tissue.shape) < 0.4), rng.integers(1, 4, tissue.shape), 0)
    return {"X": spectra.astype(np.float32), "y": labels.astype(np.uint8), "wn": AXIS, "tissue_mask": tissue}


def _meta(number: int) -> dict[str, str]:
    return {"core_id": f"c{number}", "patient_id": f"P{number}", "slide_id": "S1"}


def npz_cores(folder: Path) -> None:
    """Three cores as npz."""
    for number in range(3):
        meta = np.array(json.dumps(_meta(number)))
        np.savez(folder / f"core_{number}.npz", **core(number), delta_cm1=np.float64(15), meta=meta)


def _beside(folder: Path, name: str, number: int) -> None:
    from PIL import Image

    arrays = core(number)
    Image.fromarray(arrays["y"]).save(folder / f"{name}.labels.png")
    np.save(folder / f"{name}.tissue.npy", arrays["tissue_mask"])
    (folder / f"{name}.json").write_text(json.dumps({**_meta(number), "shape": [12, 14]}))


def envi_cores(folder: Path) -> None:
    """Three cores as ENVI, what it cannot hold beside them."""
    import spectral

    for number in range(3):
        metadata = {"wavelength": AXIS.tolist(), "wavelength units": "Wavenumber"}
        header = folder / f"core_{number}.hdr"
        spectral.envi.save_image(str(header), core(number)["X"], interleave="bil", ext=".dat", metadata=metadata)
        _beside(folder, f"core_{number}", number)


def matlab_cores(folder: Path) -> None:
    """Three cores as MATLAB v5."""
    import scipy.io

    for number in range(3):
        arrays: dict[str, Any] = core(number)
        arrays |= {"wn": AXIS[None], "meta": json.dumps(_meta(number))}
        scipy.io.savemat(folder / f"core_{number}.mat", arrays, do_compression=number != 0)


def hdf5_cores(folder: Path) -> None:
    """Three cores as MATLAB v7.3."""
    import h5py

    for number in range(3):
        text = np.frombuffer(json.dumps(_meta(number)).encode(), np.uint8).astype(np.uint16)[:, None]
        with h5py.File(folder / f"core_{number}.mat", "w", userblock_size=512) as file:
            for name, array in core(number).items():
                values = np.atleast_2d(array.astype(np.uint8) if array.dtype == bool else array).T
                file.create_dataset(name, data=values).attrs["MATLAB_class"] = np.bytes_("double")
            file.create_dataset("meta", data=text).attrs["MATLAB_class"] = np.bytes_("char")


def agilent_cores(folder: Path) -> None:
    """A tile and a mosaic, as an instrument wrote them."""
    import agilent_format

    source = Path(agilent_format.__file__).parent / "datasets"
    for pattern in ("4_noimage*", "5_[Mm]osaic*"):
        for path in sorted(source.glob(pattern)):
            shutil.copy(path, folder / path.name)
    for number, (name, shape) in enumerate({"4_noimage_agg256": (8, 8), "5_mosaic_agg1024": (8, 4)}.items()):
        np.save(folder / f"{name}.labels.npy", np.arange(np.prod(shape)).reshape(shape) % 3 + 1)
        np.save(folder / f"{name}.tissue.npy", np.ones(shape, bool))
        (folder / f"{name}.json").write_text(json.dumps(_meta(number)))


def opus_cores(folder: Path) -> None:
    """Three series of spectra as OPUS."""
    import struct

    from brukeropus.file import constants

    def block(kind: tuple[int, ...], content: bytes) -> tuple[int, bytes]:
        return sum(value << shift for value, shift in zip(kind, (0, 2, 4, 10, 17, 19), strict=True)), content

    sizes = struct.Struct("<" + "".join(entry["fmt"] for entry in constants.STRUCT_3D_INFO_BLOCK))
    for number in range(3):
        values = core(number)["X"].reshape(168, -1)[:, ::-1].astype("<f4")
        content = struct.pack("<6i", 0, len(values), 32, values[0].nbytes, sizes.size, 1)
        content += struct.pack("<2i", 0, len(values) - 1) + b"".join(
            row.tobytes() + bytes(sizes.size) for row in values
        )
        status = b""
        for key, value in {"DPF": 1, "NPT": len(AXIS), "FXV": 1800.0, "LXV": 900.0, "CSF": 1.0, "DXU": "WN"}.items():
            kind, said = (0, struct.pack("<i", value)) if isinstance(value, int) else (1, b"")
            if isinstance(value, float):
                said = struct.pack("<d", value)
            elif isinstance(value, str):
                kind, said = 2, value.encode() + bytes(2)
            status += key.encode() + b"\0" + struct.pack("<2h", kind, len(said) // 2) + said
        status += b"END\0" + bytes(8)
        blocks = [block((3, 3, 0, 4, 0, 2), content), block((3, 3, 1, 4, 0, 2), status)]
        start, directory, body = 24 + 12 * 3, b"", b""
        for code, inside in blocks:
            inside += bytes(-len(inside) % 4)
            directory += struct.pack("<3i", code, len(inside) // 4, start + len(body))
            body += inside
        header = b"\n\n\xfe\xfe" + struct.pack("<d3i", 920622.0, 24, 3, 2)
        (folder / f"core_{number}.0").write_bytes(header + directory + bytes(12) + body)
        _beside(folder, f"core_{number}.0", number)


def _blocks(rng: np.random.Generator, most: int, side: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return so many blocks along each axis, each of `side` voxels and a random value below `most`."""
    return np.kron(rng.integers(0, most, shape), np.ones((side,) * len(shape), int))


def heads(folder: Path, suffix: str = ".nii.gz") -> None:
    """Three heads with their brain masks, as NIfTI."""
    import nibabel

    shape, spacing = (20, 24, 18), 10.0
    x, y, z = np.meshgrid(*[(np.arange(n) - (n - 1) / 2) * spacing for n in shape], indexing="ij")
    far = np.sqrt(x**2 + y**2 + z**2)
    for number in range(3):
        rng = np.random.default_rng(number)
        tissue = _blocks(rng, 200, 2, (10, 12, 9))  # without it, all heads would be copies of one
        scan = ((far < 82) * 300 + (far < 62) * (200 + tissue) + rng.integers(0, 30, shape)).astype("i2")
        stem = folder / f"sub-{number}" / f"sub-{number}_ses-1_T1w"
        stem.parent.mkdir()
        place = np.diag([spacing, spacing, spacing, 1])
        nibabel.save(nibabel.Nifti1Image(scan, place), f"{stem}{suffix}")
        nibabel.save(nibabel.Nifti1Image((far < 62).astype("u1"), place), f"{stem}_brainmask{suffix}")


def _sheets(number: int) -> tuple[np.ndarray, np.ndarray]:
    shape, rng = (24, 28, 32), np.random.default_rng(number)
    y, x = np.mgrid[: shape[1], : shape[2]]
    label = np.zeros(shape, np.uint8)
    for at in (6, 18):
        height = at + np.rint(1.5 * np.sin((x + y + number) / 6)).astype(int)
        for thick in (-1, 0, 1):
            label[height + thick, y, x] = 1
    image = np.clip(60 + 120 * label + rng.normal(0, 8, shape), 0, 255).astype(np.uint8)
    label[:, :4] = 2
    return image, label


def volumes(folder: Path, form: str = "tif") -> None:
    """Three scroll volumes with labels and train.csv, as tif, npy or zarr (2, 3)."""
    import tifffile

    for name in ("train_images", "train_labels"):
        (folder / name).mkdir()
    for number in range(3):
        for name, array in zip(("train_images", "train_labels"), _sheets(number), strict=True):
            path = folder / name / f"{number}"
            if form == "tif":
                tifffile.imwrite(f"{path}.tif", array, compression="lzw", metadata=None)
            elif form == "npy":
                np.save(f"{path}.npy", array)
            else:
                import zarr

                store = zarr.create_array(f"{path}.zarr", shape=array.shape, chunks=(12, 28, 32), dtype=array.dtype,
                                          zarr_format=int(form))  # fmt: skip
                store[:] = array
    rows = [["id", "scroll_id"], *([f"{number}", f"S{number}"] for number in range(3))]
    (folder / "train.csv").write_text("".join(",".join(row) + "\n" for row in rows))


def patients(folder: Path) -> None:
    """Two patients of boxes in the challenge's files."""
    from runner_openkbp.csvfiles import write_indices, write_values, write_voxels

    boxes = {
        "possible_dose_mask": (50, 74, 50, 74, 40, 80), "Brainstem": (62, 66, 61, 65, 42, 48),
        "SpinalCord": (66, 69, 62, 66, 50, 70), "PTV56": (56, 62, 66, 70, 50, 60), "PTV70": (54, 60, 56, 62, 52, 64),
    }  # fmt: skip
    for number in (1, 2):
        patient = folder / f"pt_{number}"
        patient.mkdir()
        masks = {}
        for role, (a, b, c, d, e, f) in boxes.items():
            masks[role] = np.zeros((128, 128, 128), bool)
            masks[role][a:b, c:d, e:f] = True
            write_indices(patient / f"{role}.csv", masks[role])
        body = masks["possible_dose_mask"]
        dose = body * 12.5 + masks["PTV56"] * 45.0 + masks["PTV70"] * 58.0
        write_values(patient / "dose.csv", dose, body)
        tissue = _blocks(np.random.default_rng(number), 300, 4, (32, 32, 32))
        write_values(patient / "ct.csv", (body * (1050 + tissue)).astype(np.int16))
        write_voxels(patient / "voxel_dimensions.csv", np.array([4.0, 4.0, 2.5]))


def plates(folder: Path) -> None:
    """Two plates of two wells in two channels, and tables that name the images."""
    import pyarrow as pa
    import pyarrow.parquet
    import tifffile

    rows = []
    for plate in ("P1", "P2"):
        (folder / "images" / plate).mkdir(parents=True)
        for well in ("A01", "A02"):
            for channel in (1, 2):
                rng = np.random.default_rng(len(rows))
                y, x = np.mgrid[-1:1:40j, -1:1:48j]
                blob = np.exp(-4 * ((x - rng.uniform(-0.3, 0.3)) ** 2 + y**2)) * (
                    1500 + _blocks(rng, 2000, 4, (10, 12))
                )
                image = np.clip(200 + blob + rng.normal(0, 20, blob.shape), 0, 65535).astype(np.uint16)
                name = f"{plate}/{plate}_{well}_site1_Ch{channel}.tif"
                tifffile.imwrite(folder / "images" / name, image, photometric="minisblack")
                rows.append({"plate": plate, "well": well, "site": "1", "channel": str(channel), "path": name})
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / "table.csv").write_text(text.getvalue())
    pa.parquet.write_table(pa.Table.from_pylist(rows), folder / "table.parquet")
    fields = [row for row in rows if row["channel"] == "1"]
    said = ["Metadata_Plate,Metadata_Well,Metadata_Site,FileName_OrigDNA,PathName_OrigDNA"]
    said += [f"{row['plate']},{row['well']},1,{Path(row['path']).name},{row['plate']}" for row in fields]
    (folder / "load_data.csv").write_text("\n".join(said) + "\n")
