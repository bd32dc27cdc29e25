"""The formats of data, and what is specific to their structures."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from hostile import datasets
from hostile.case import Format
from hostile.mutations import (
    NODES,
    TEXTS,
    Changed,
    Draw,
    Mutate,
    damage,
    fields,
    gzipped,
    json_text,
    lines,
    npy,
    npz,
    pick,
    tiff,
    tree,
)

# ---------------------------------------------------------------- NIfTI

_NIFTI: dict[str, tuple[int, str]] = {
    "sizeof_hdr": (0, "<i"), "dim_info": (39, "<B"), **{f"dim[{i}]": (40 + 2 * i, "<h") for i in range(8)},
    "intent_code": (68, "<h"), "datatype": (70, "<h"), "bitpix": (72, "<h"), "slice_start": (74, "<h"),
    **{f"pixdim[{i}]": (76 + 4 * i, "<f") for i in range(8)}, "vox_offset": (108, "<f"), "scl_slope": (112, "<f"),
    "scl_inter": (116, "<f"), "slice_end": (120, "<h"), "xyzt_units": (123, "<B"), "cal_max": (124, "<f"),
    "qform_code": (252, "<h"), "sform_code": (254, "<h"), **{f"quatern[{i}]": (256 + 4 * i, "<f") for i in range(6)},
    **{f"srow[{i}]": (280 + 4 * i, "<f") for i in range(12)}, "magic": (344, "<I"), "extension": (348, "<I"),
}  # fmt: skip
_DATATYPES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 255, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2304, -1, 9999)


def nifti(draw: Draw, content: bytes) -> Changed:
    """Numbers of the header; one of them is often the type of the voxels, or a whole other shape."""
    how = pick(draw, ("fields", "fields", "fields", "datatype", "shape", "spacing", "extension", "swapped"))
    if how == "datatype":
        kind = pick(draw, _DATATYPES)
        return f"datatype {kind}", content[:70] + struct.pack("<h", kind) + content[72:]
    if how == "shape":
        size = [pick(draw, (0, -1, 1, 2, 3, 7, 20, 24, 300, 4000, 32767)) for _ in range(8)]
        size[0] = pick(draw, (0, 1, 2, 3, 3, 3, 4, 5, 7, 8, -1))
        return f"dim {size}", content[:40] + struct.pack("<8h", *size) + content[56:]
    if how == "spacing":
        size = pick(draw, (1e-6, 0.001, 1000.0, 1e6, 1e30, -1.0, float("nan"), 0.0))
        rows = struct.pack("<12f", size, 0, 0, 0, 0, size, 0, 0, 0, 0, size, 0)
        return f"voxels of {size} mm", content[:80] + struct.pack("<3f", size, size, size) + content[
            92:280
        ] + rows + content[328:]
    if how == "extension":
        return "an extension of 2 GB", content[:348] + struct.pack("<4B2i", 1, 0, 0, 0, 2**31 - 16, 6) + content[352:]
    if how == "swapped":
        head = b"".join(content[i : i + 2][::-1] for i in range(0, 348, 2))
        return "byte order of the header turned", head + content[348:]
    return fields(draw, content, _NIFTI)


# ---------------------------------------------------------------- the formats of infrared cores


def envi_header(draw: Draw, content: bytes) -> Changed:
    """A value of the header, or its text."""
    if pick(draw, range(4)) == 2:
        return lines(draw, content)
    text = content.decode()
    keys = [line.partition("=")[0].strip() for line in text.splitlines() if "=" in line]
    key = pick(draw, keys)
    value = pick(
        draw, (*TEXTS, "0", "-1", "5", "6", "12", "99999999999", "{1}", "{", "{}", "{1, 2, x}", "bip", "bsq", "nm")
    )
    out, skipping = [], False
    for line in text.splitlines():
        if line.partition("=")[0].strip() == key:
            out.append(f"{key} = {value}")
            skipping = "{" in line and "}" not in line
        elif skipping:
            skipping = "}" not in line
        else:
            out.append(line)
    return f"{key} = {value[:60]!r}", "\n".join(out).encode("utf-8", "surrogatepass")


def matlab5(draw: Draw, content: bytes) -> Changed:
    """Tags (type and size) of a MATLAB v5 file and of what is in its first variables, or variables of other classes."""
    if draw(st.integers(0, 1)):
        return _matlab5_values(draw)
    places: dict[str, tuple[int, str]] = {"version": (124, "<H"), "endian": (126, "<H")}
    at, count = 128, 0
    while at + 8 <= len(content) and count < 8:
        kind, size = struct.unpack("<II", content[at : at + 8])
        places |= {f"type at {at}": (at, "<I"), f"size at {at}": (at + 4, "<I")}
        if kind == 14:
            inner = at + 8
            places |= {f"tag {i} of {at}": (inner + 4 * i, "<I") for i in range(16)}
        at += 8 + size
        count += 1
    return fields(draw, content, places)


def _matlab5_values(draw: Draw) -> Changed:
    import io

    import numpy as np
    import scipy.io

    arrays: dict[str, Any] = datasets.core(0) | {"wn": datasets.AXIS[None], "meta": '{"patient_id": "P0"}'}
    name, other = pick(draw, sorted(arrays)), _others()
    what = pick(draw, sorted(other))
    arrays[name] = other[what](np.asarray(arrays[name]))
    file = io.BytesIO()
    scipy.io.savemat(file, arrays)
    return f"{name} is {what}", file.getvalue()


def _others() -> dict[str, Callable[[Any], Any]]:
    import numpy as np
    import scipy.sparse

    def cell(a: Any) -> Any:
        box = np.empty((1, 1), object)
        box[0, 0] = a
        return box

    return {
        "a cell": cell, "a struct": lambda a: {"x": a}, "text": lambda a: "text",
        "sparse": lambda a: scipy.sparse.eye(5),
        "complex": lambda a: a.astype(complex) if a.dtype.kind != "U" else 1j, "empty": lambda a: np.zeros((0, 0)),
        "a number": lambda a: 7.0, "NaN": lambda a: np.full((12, 14), np.nan), "strings": lambda a: np.array(["ab",
        "cd"]),
        "one axis more": lambda a: a[None, None], "turned": lambda a: a.T, "int64": lambda a: np.full((12, 14), 2**62),
        "bool": lambda a: np.ones((12, 14), bool), "nested": lambda a: {"x": {"y": {"z": a}}},
        "text of 2 lines": lambda a: np.array(["a" * 9, "b" * 9]), "no JSON": lambda a: "{",
        "deep JSON": lambda a: "[" * 5000, "number JSON": lambda a: '{"patient_id": 1e999}',
    }  # fmt: skip


def hdf5(draw: Draw, content: bytes) -> Changed:
    """A MATLAB v7.3 file, with links, other types and other sizes in place of one of its variables."""
    import io

    import h5py
    import numpy as np

    if pick(draw, range(4)) == 2:
        return damage(draw, content)
    buffer = io.BytesIO(content)
    with h5py.File(buffer, "r+") as file:
        name = pick(draw, sorted(file))
        values, shape = file[name][()], file[name].shape
        huge = {"shape": (100_000, 100_000, 10), "chunks": (100, 100, 10), "compression": "gzip"}
        ways: dict[str, Callable[[], Any]] = {
            "gone": lambda: None,
            "a link out": lambda: file.__setitem__(name, h5py.ExternalLink("../../outside/canary", "/X")),
            "a link to /dev/zero": lambda: file.__setitem__(name, h5py.ExternalLink("/dev/zero", "/X")),
            "a link to itself": lambda: file.__setitem__(name, h5py.SoftLink(f"/{name}")),
            "a link to nothing": lambda: file.__setitem__(name, h5py.SoftLink("/nothing")),
            "a link to all": lambda: file.__setitem__(name, h5py.SoftLink("/")),
            "a folder": lambda: file.create_group(name),
            "a folder in itself": lambda: file.create_group(name).__setitem__("up", file["/"]),
            "huge and empty": lambda: file.create_dataset(name, dtype="f4", **huge),
            "stored outside": lambda: file.create_dataset(
                name, shape, "f4", external=[("../../outside/canary", 0, 10**9)]
            ),
            "text": lambda: file.create_dataset(name, data="text"),
            "references": lambda: file.create_dataset(name, data=np.array([file.ref]), dtype=h5py.ref_dtype),
            "ragged": lambda: file.create_dataset(name, (3,), h5py.vlen_dtype(np.float32)),
            "a compound": lambda: file.create_dataset(name, data=np.zeros(shape, [("real", "f8"), ("imag", "f8")])),
            "an enumeration": lambda: file.create_dataset(name, shape, h5py.enum_dtype({"A": 1}, "i4")),
            "empty": lambda: file.create_dataset(name, data=h5py.Empty("f4")),
            "without size": lambda: file.create_dataset(name, (0, 3, 4), "f4"),
            "a number": lambda: file.create_dataset(name, data=1.0),
            "turned": lambda: file.create_dataset(name, data=values.T),
            "NaN": lambda: file.create_dataset(name, data=np.full(shape, np.nan)),
            "half": lambda: file.create_dataset(name, data=values[: len(values) // 2]),
            "opaque": lambda: file.create_dataset(name, data=np.zeros(shape, "V4")),
            "codes beyond text": lambda: file.create_dataset(name, data=np.full(shape, 2**31, "u4")),
            "negative codes": lambda: file.create_dataset(name, data=np.full(shape, -5, "i4")),
            "virtual": lambda: file.create_virtual_dataset(name, _virtual(shape)),
        }
        what = pick(draw, sorted(ways))
        del file[name]
        ways[what]()
        if draw(st.booleans()) and not what.startswith(("a link", "gone", "a folder")):
            kind = pick(draw, (b"char", b"double", b"cell", b"struct", b"", b"\xff", b"logical"))
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
            what += f" of class {kind!r}"
    return f"{name} is {what}", buffer.getvalue()


def _virtual(shape: tuple[int, ...]) -> Any:
    import h5py

    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource("../../outside/canary", "X", shape)
    return layout


def words(start: int, stop: int, code: str = "<i") -> Mutate:
    """One to three numbers of a header from byte `start` to `stop`."""

    def mutate(draw: Draw, content: bytes) -> Changed:
        step = struct.calcsize(code)
        last = min(stop, len(content) - step)
        return fields(draw, content, {f"number at {at}": (at, code) for at in range(start, last, step)})

    return mutate


def png(draw: Draw, content: bytes) -> Changed:
    """A picture: its width, height, depth, kind, or one of the parts it is made of."""
    import zlib

    how = pick(draw, ("header", "header", "part", "palette", "colour"))
    if how == "header":
        what, changed = fields(draw, content, {"width": (16, ">I"), "height": (20, ">I"), "depth": (24, ">B"),
        "kind": (25, ">B"),
                                               "method": (26, ">B"), "interlace": (28, ">B")})  # fmt: skip
        return what, changed[:29] + struct.pack(">I", zlib.crc32(changed[12:29])) + changed[33:]
    if how == "part":
        at = 33
        return "a part of 2 GB", content[:at] + struct.pack(">I", 2**31 - 1) + content[at + 4 :]
    import io

    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    kinds: dict[str, Any] = {
        "palette": Image.new("P", (14, 12)), "colour": Image.new("RGB", (14, 12)),
    }  # fmt: skip
    other = Image.fromarray(np.full((12, 14), 200, np.uint8)) if draw(st.booleans()) else kinds[how]
    other.save(file, "PNG")
    return f"another picture ({other.mode})", file.getvalue()


# ---------------------------------------------------------------- volumes and tables


def parquet(draw: Draw, content: bytes) -> Changed:
    """A table of other columns or types."""
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.parquet.read_table(pa.BufferReader(content))
    name = pick(draw, table.column_names)
    at, size = table.column_names.index(name), len(table)
    columns: dict[str, Any] = {
        "numbers": [1.5] * size, "nothing": [None] * size, "lists": [["a"]] * size, "bytes": [b"\xff"] * size,
        "numbers beyond": [2**62] * size, "structs": [{"a": 1}] * size, "bools": [True] * size, "equal": ["x"] * size,
        "NUL": ["a\0b"] * size, "out": ["../../outside/canary"] * size, "long": ["a" * 10_000] * size,
        "NaN": [float("nan")] * size,
        "devices": ["/dev/zero"] * size, "URLs": ["http://127.0.0.1:1/a.tif"] * size,
        "secrets": ["s3://a:b@c/d"] * size,
    }  # fmt: skip
    what = pick(draw, [*sorted(columns), "gone", "twice", "no rows"])
    if what == "gone":
        table = table.drop_columns(name)
    elif what == "twice":
        table = table.append_column(name, table.column(name))
    elif what == "no rows":
        table = table.slice(0, 0)
    else:
        table = table.set_column(at, name, pa.array(columns[what]))
    out = pa.BufferOutputStream()
    pa.parquet.write_table(table, out)
    return f"{name}: {what}", out.getvalue().to_pybytes()


def zarr_json(draw: Draw, content: bytes) -> Changed:
    """Change zarr's description of an array: its tree, often its shape, its chunks or its codecs."""
    said = json.loads(content)
    how = pick(draw, ("tree", "shape", "chunks", "dtype", "fill"))
    if how == "tree":
        what, said = tree(draw, said)
        return what, json.dumps(said).encode()
    size = [pick(draw, (0, -1, 1, 7, 24, 32000, 2**31, 2**62, 1.5, "a", None)) for _ in range(draw(st.integers(0, 4)))]
    if how == "shape":
        said["shape"] = size
    elif how == "chunks" and "chunk_grid" in said:
        said["chunk_grid"]["configuration"]["chunk_shape"] = size
    elif how == "chunks":
        said["chunks"] = size
    elif how == "dtype":
        said["data_type" if "data_type" in said else "dtype"] = pick(
            draw,
            (
                "|O",
                "<f8",
                "float64",
                "uint16",
                "|u2",
                "complex64",
                "string",
                "",
                7,
                "|S10",
                "r8",
                "bool",
                "int8",
                [["a", "<f4"]],
            ),
        )
    else:
        said["fill_value"] = pick(draw, (*NODES, "NaN", "Infinity", 255, 300, 2))
    return f"{how}: {json.dumps(said)[:100]}", json.dumps(said).encode()


_TABLES = dict.fromkeys(("table.csv", "load_data.csv"), lines)
_CHECK = {
    "ssmunet": "ssmunet check --data {data} --preset demo",
    "brainunet": "brainunet check --data {data} --data.size 32 --data.spacing 10",
    "vesuvius": "vesuvius check --data {data} --preset demo --data.patch 16 16 16",
    "openkbp": "openkbp check --data {data}",
    "dinocell": "dinocell check --data {data}/images --preset demo --data.window 32",
}
_AGILENT = _CHECK["ssmunet"] + " --data.low 1900 --data.high 2000 --data.gap None --data.bin 1"
_SIDES = {"labels.png": png, "tissue.npy": npy, "json": json_text}


def _with(stem: str, core: dict[str, Mutate]) -> dict[str, Mutate]:
    return core | {f"{stem}.{end}": mutate for end, mutate in _SIDES.items()}


def _nifti_files(suffix: str, mutate: Mutate) -> dict[str, Mutate]:
    stem = "sub-1/sub-1_ses-1_T1w"
    return {f"{stem}{suffix}": mutate, f"{stem}_brainmask{suffix}": mutate}


def _volume_files(form: str, mutate: Mutate) -> dict[str, Mutate]:
    return {f"train_images/1.{form}": mutate, f"train_labels/1.{form}": mutate}


def _zarr_files(names: tuple[str, ...]) -> dict[str, Mutate]:
    return {
        f"{folder}/1.zarr/{name}": zarr_json if name.endswith(("json", ".zarray")) else damage
        for folder in ("train_images", "train_labels")
        for name in names
    }


FORMATS = [
    Format("ssmunet npz", datasets.npz_cores, {"core_1.npz": npz}, [_CHECK["ssmunet"]], torn=1, share=6),
    Format("ssmunet ENVI", datasets.envi_cores, _with("core_1", {"core_1.hdr": envi_header, "core_1.dat": damage}),
           [_CHECK["ssmunet"]], share=5),
    Format("ssmunet MATLAB 5", datasets.matlab_cores, {"core_0.mat": matlab5, "core_1.mat": matlab5},
    [_CHECK["ssmunet"]],
           torn=1, share=6),
    Format("ssmunet MATLAB 7.3", datasets.hdf5_cores, {"core_1.mat": hdf5}, [_CHECK["ssmunet"]], torn=1, share=6),
    Format("ssmunet Agilent", datasets.agilent_cores,
           {"4_noimage_agg256.bsp": words(0, 4000), "4_noimage_agg256.dat": words(0, 300),
            "5_mosaic_agg1024.dmt": words(2000, 4000), "5_Mosaic_agg1024_0000_0001.dmd": words(0, 300)},
           [_AGILENT], share=4),
    Format("ssmunet OPUS", datasets.opus_cores, _with("core_1.0", {"core_1.0": words(0, 400)}), [_CHECK["ssmunet"]],
    share=5),
    Format("brainunet nii.gz", datasets.heads, _nifti_files(".nii.gz", gzipped(nifti)), [_CHECK["brainunet"]], torn=1,
    share=7),
    Format("brainunet nii", lambda folder: datasets.heads(folder, ".nii"), _nifti_files(".nii", nifti),
    [_CHECK["brainunet"]],
           torn=1, share=5),
    Format("vesuvius tif", datasets.volumes, {**_volume_files("tif", tiff), "train.csv": lines}, [_CHECK["vesuvius"]],
    torn=0.9,
           share=4),
    Format("vesuvius npy", lambda folder: datasets.volumes(folder, "npy"), {**_volume_files("npy", npy),
    "train.csv": lines},
           [_CHECK["vesuvius"]], torn=0.9, share=2),
    Format("vesuvius zarr 2", lambda folder: datasets.volumes(folder, "2"), _zarr_files((".zarray", ".zattrs",
    "0.0.0")),
           [_CHECK["vesuvius"]], share=3),
    Format("vesuvius zarr 3", lambda folder: datasets.volumes(folder, "3"), _zarr_files(("zarr.json", "c/1/0/0")),
           [_CHECK["vesuvius"]], share=3),
    Format("openkbp CSV", datasets.patients,
           {f"pt_1/{name}.csv": lines for name in ("ct", "dose", "PTV70", "voxel_dimensions", "possible_dose_mask",
           "Brainstem")},
           [_CHECK["openkbp"]], share=5),
    Format("dinocell TIFF", datasets.plates, {"images/P1/P1_A01_site1_Ch1.tif": tiff}, [_CHECK["dinocell"]], share=5),
    Format("dinocell tables", datasets.plates, {**_TABLES, "table.parquet": parquet},
           [_CHECK["dinocell"] + " --data.manifest {file}"], share=6, whole=False),
]  # fmt: skip
