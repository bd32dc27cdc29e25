"""Which scans and masks are found, in NFBS folders, BIDS trees and folders of anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_brainunet import files
from runner_brainunet.config import BrainConfig, BrainDataConfig
from runner_brainunet.project import BrainUNet
from runner_core import LEFT_OUT, BadInput, Record, collect_left_out


def find_records(root: Path, said: list[str] | None = None, **data: object) -> list[Record]:
    with collect_left_out() as left_out:
        records = files.find_records(root, BrainDataConfig(**data))  # type: ignore[arg-type]
    if said is not None:
        said += [finding.message for finding in left_out]
    return records


def find_inputs(root: Path, said: list[str] | None = None, **data: object) -> list[Record]:
    with collect_left_out() as left_out:
        records = files.find_inputs(root, BrainDataConfig(**data))  # type: ignore[arg-type]
    if said is not None:
        said += [finding.message for finding in left_out]
    return records


def found(root: Path, said: list[str] | None = None, **data: object) -> dict[str, tuple[str, str]]:
    """Person and mask, or its name where it is missing, by key."""
    return {r.key: (r.group, r.files["mask"].relative_to(root).as_posix()) for r in find_records(root, said, **data)}


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_nfbs_pairs_by_name_and_groups_by_person(tmp_path: Path) -> None:
    for scan in ("A01/sub-A01_ses-NFB3_T1w", "A01/sub-A01_ses-NFB4_T1w", "A02/sub-A02_ses-NFB3_T1w"):
        touch(tmp_path, f"{scan}.nii.gz", f"{scan}_brainmask.nii.gz", f"{scan}_brain.nii.gz")
    records = find_records(tmp_path)
    assert [(r.key, r.group) for r in records] == [
        ("sub-A01_ses-NFB3_T1w", "sub-A01"),
        ("sub-A01_ses-NFB4_T1w", "sub-A01"),
        ("sub-A02_ses-NFB3_T1w", "sub-A02"),
    ]
    assert records[0].files["mask"].name == "sub-A01_ses-NFB3_T1w_brainmask.nii.gz"
    assert [r.key for r in find_inputs(tmp_path)] == [r.key for r in records]


def test_bids_masks_beside_the_scan_or_in_derivatives(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "sub-1/anat/sub-1_T1w.nii.gz",
        "derivatives/fmriprep/sub-1/anat/sub-1_desc-brain_mask.nii.gz",
        "derivatives/fmriprep/sub-1/anat/sub-1_space-MNI152_desc-brain_mask.nii.gz",
        "derivatives/fmriprep/sub-1/anat/sub-1_desc-preproc_T1w.nii.gz",
        "sub-2/ses-a/anat/sub-2_ses-a_T1w.nii",
        "sub-2/ses-a/anat/sub-2_ses-a_desc-brain_mask.nii",
        "sub-2/ses-b/anat/sub-2_ses-b_run-2_T1w.nii.gz",
        "derivatives/x/sub-2/ses-b/anat/sub-2_ses-b_run-1_desc-brain_mask.nii.gz",
        "derivatives/x/sub-2/ses-b/anat/sub-2_ses-b_run-2_desc-brain_mask.nii.gz",
    )
    masks = {r.key: r.files["mask"].name for r in find_records(tmp_path)}
    assert masks == {
        "sub-1_T1w": "sub-1_desc-brain_mask.nii.gz",
        "sub-2_ses-a_T1w": "sub-2_ses-a_desc-brain_mask.nii",
        "sub-2_ses-b_run-2_T1w": "sub-2_ses-b_run-2_desc-brain_mask.nii.gz",
    }


def test_two_possible_masks_are_refused_with_both_names(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "sub-1/anat/sub-1_T1w.nii.gz",
        "derivatives/a/sub-1_desc-brain_mask.nii.gz",
        "derivatives/b/sub-1_desc-brain_mask.nii.gz",
    )
    with pytest.raises(BadInput, match=r"2 masks could be its own.*derivatives/a.*derivatives/b"):
        find_records(tmp_path)


def test_the_folders_own_split_is_kept(tmp_path: Path) -> None:
    for part, number in (("train", 1), ("val", 2), ("test", 3)):
        touch(tmp_path, f"{part}/sub-{number}_T1w.nii.gz", f"{part}/sub-{number}_T1w_brainmask.nii.gz")
    assert [r.split for r in find_records(tmp_path)] == ["train", "validation", "test"]


def test_equal_names_get_different_keys(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        touch(tmp_path, f"{folder}/sub-1_T1w.nii.gz", f"{folder}/sub-1_T1w_brainmask.nii.gz")
    assert len({r.key for r in find_records(tmp_path)}) == 2


def test_inputs_take_any_nifti_but_no_masks(tmp_path: Path) -> None:
    touch(tmp_path, "x/head.nii", "x/head_brainmask.nii", "x/notes.txt", "y.nii.gz", "y_brain.nii.gz")
    assert [r.key for r in find_inputs(tmp_path)] == ["head", "y"]
    assert [r.key for r in find_inputs(tmp_path / "x" / "head.nii")] == ["head"]


@pytest.mark.parametrize("find", [find_records, find_inputs])
def test_what_is_not_there_is_named(find, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere: no such folder"):
        find(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"no (T1 scan with a brain mask|NIfTI file) below it"):
        find(tmp_path)


# ---------------------------------------------------------------- BIDS


def test_fmriprep_beside_masks_of_func_and_dwi(tmp_path: Path) -> None:
    """fMRIPrep and QSIPrep leave five files that end in desc-brain_mask for a person with bold runs; one is the
    T1's."""
    raw, out = "sub-1/ses-a", "derivatives/fmriprep/sub-1/ses-a"
    touch(
        tmp_path,
        f"{raw}/anat/sub-1_ses-a_T1w.nii.gz",
        f"{raw}/anat/sub-1_ses-a_T2w.nii.gz",
        f"{out}/anat/sub-1_ses-a_desc-brain_mask.nii.gz",
        f"{out}/anat/sub-1_ses-a_desc-preproc_T1w.nii.gz",
        f"{out}/anat/sub-1_ses-a_space-MNI152NLin2009cAsym_res-2_desc-brain_mask.nii.gz",
        f"{out}/anat/sub-1_ses-a_T2w_desc-brain_mask.nii.gz",
        f"{out}/func/sub-1_ses-a_task-rest_run-1_desc-brain_mask.nii.gz",
        f"{out}/func/sub-1_ses-a_task-rest_run-1_space-T1w_desc-brain_mask.nii.gz",
        f"{out}/func/sub-1_ses-a_desc-brain_mask.nii.gz",
        "derivatives/qsiprep/sub-1/ses-a/dwi/sub-1_ses-a_space-T1w_desc-brain_mask.nii.gz",
        "derivatives/qsiprep/sub-1/ses-a/anat/sub-1_ses-a_dir-AP_desc-brain_mask.nii.gz",
        "derivatives/qsiprep/sub-1/ses-a/anat/sub-1_ses-a_part-mag_desc-brain_mask.nii.gz",
        "derivatives/qsiprep/sub-1/ses-a/anat/sub-1_ses-a_echo-1_desc-brain_mask.nii.gz",
    )
    said: list[str] = []
    assert found(tmp_path, said) == {"sub-1_ses-a_T1w": ("sub-1", f"{out}/anat/sub-1_ses-a_desc-brain_mask.nii.gz")}
    assert "4 masks left out, of no T1 scan that is there" in said[0]


def test_a_derivatives_folder_alone(tmp_path: Path) -> None:
    touch(tmp_path, *(f"sub-1/anat/sub-1_{space}desc-{name}.nii.gz" for space in ("", "space-MNI_")
                      for name in ("brain_mask", "preproc_T1w")))  # fmt: skip
    assert found(tmp_path) == {
        "sub-1_desc-preproc_T1w": ("sub-1", "sub-1/anat/sub-1_desc-brain_mask.nii.gz"),
        "sub-1_space-MNI_desc-preproc_T1w": ("sub-1", "sub-1/anat/sub-1_space-MNI_desc-brain_mask.nii.gz"),
    }


@pytest.mark.parametrize("entity", ["acq-x", "run-1", "rec-a", "ce-gd", "ses-1", "echo-2", "part-mag"])
def test_one_mask_is_not_silently_that_of_two_scans(tmp_path: Path, entity: str) -> None:
    name = entity.partition("-")[0]
    scans = [f"sub-1/anat/sub-1_{entity}_T1w.nii.gz", f"sub-1/anat/sub-1_{name}-other_T1w.nii.gz"]
    touch(tmp_path, "derivatives/sub-1/anat/sub-1_desc-brain_mask.nii.gz", scans[0])
    assert [mask for _, mask in found(tmp_path).values()] == ["derivatives/sub-1/anat/sub-1_desc-brain_mask.nii.gz"]
    touch(tmp_path, scans[1])
    with pytest.raises(BadInput, match=rf"is it the mask of \S+ or of \S+\? Its name does not say {name}-…. Add that"):
        find_records(tmp_path)
    touch(tmp_path, f"derivatives/sub-1/anat/sub-1_{entity}_desc-brain_mask.nii.gz")
    with pytest.raises(BadInput, match="is it the mask of"):  # nor is it that of the one which has none of its own
        find_records(tmp_path)


# ---------------------------------------------------------------- other public sets


def test_ixi_with_masks_of_a_tool(tmp_path: Path) -> None:
    for person in ("IXI012-HH-1211", "IXI002-Guys-0828"):
        touch(
            tmp_path, f"IXI-T1/{person}-T1.nii.gz", f"IXI-T1/{person}-T2.nii.gz", f"masks/{person}-T1_bet_mask.nii.gz"
        )
    touch(tmp_path, "IXI-T1/IXI013-HH-1212-T1.nii.gz")
    said: list[str] = []
    assert found(tmp_path, said) == {
        "IXI002-Guys-0828-T1": ("IXI002", "masks/IXI002-Guys-0828-T1_bet_mask.nii.gz"),
        "IXI012-HH-1211-T1": ("IXI012", "masks/IXI012-HH-1211-T1_bet_mask.nii.gz"),
        "IXI013-HH-1212-T1": ("IXI013", "masks/IXI013-HH-1212-T1_bet_mask.nii.gz"),  # missing: decoding says so
    }
    assert "2 NIfTI files left out" in said[0]
    assert "IXI012-HH-1211-T2.nii.gz" in said[0]


def test_cc359(tmp_path: Path) -> None:
    for name in ("CC0001_philips_15_55_M", "CC0002_philips_15_56_F"):
        touch(tmp_path, f"Original/{name}.nii.gz", f"STAPLE/{name}_staple.nii.gz", f"WM-GM-CSF/{name}_pveseg.nii.gz")
    assert found(tmp_path) == {
        "CC0001_philips_15_55_M": ("CC0001", "STAPLE/CC0001_philips_15_55_M_staple.nii.gz"),
        "CC0002_philips_15_56_F": ("CC0002", "STAPLE/CC0002_philips_15_56_F_staple.nii.gz"),
    }
    for name in ("CC0001_philips_15_55_M", "CC0002_philips_15_56_F"):
        touch(tmp_path, f"Silver/{name}_ss.nii.gz")
    with pytest.raises(BadInput, match=r"2 masks could be its own.*--data.pattern 'Original/{id}.nii.gz'") as caught:
        find_records(tmp_path)
    words = str(caught.value).split("--data.pattern ")[1].rstrip(".").replace("'", "").split()
    assert len(found(tmp_path, pattern=tuple(words))) == 2  # the advice is right as it stands


def test_oasis_1(tmp_path: Path) -> None:
    """Analyze files, some people twice; what is raw or segmented has no mask."""
    for visit in ("OAS1_0001_MR1", "OAS1_0061_MR1", "OAS1_0061_MR2"):
        own = f"disc1/{visit}/PROCESSED/MPRAGE"
        for name in (
            f"{own}/T88_111/{visit}_mpr_n4_anon_111_t88_gfc",
            f"{own}/T88_111/{visit}_mpr_n4_anon_111_t88_masked_gfc",
            f"{own}/SUBJ_111/{visit}_mpr_n4_anon_sbj_111",
            f"disc1/{visit}/RAW/{visit}_mpr-1_anon",
            f"disc1/{visit}/FSL_SEG/{visit}_mpr_n4_anon_111_t88_masked_gfc_fseg",
        ):
            touch(tmp_path, f"{name}.hdr", f"{name}.img")
    said: list[str] = []
    records = find_records(tmp_path, said)
    assert [(r.key, r.group) for r in records] == [
        (f"{visit}_mpr_n4_anon_111_t88_gfc", visit[:9]) for visit in ("OAS1_0001_MR1", "OAS1_0061_MR1", "OAS1_0061_MR2")
    ]
    assert {role: path.name for role, path in records[0].files.items()} == {
        "image": "OAS1_0001_MR1_mpr_n4_anon_111_t88_gfc.img",
        "image header": "OAS1_0001_MR1_mpr_n4_anon_111_t88_gfc.hdr",
        "mask": "OAS1_0001_MR1_mpr_n4_anon_111_t88_masked_gfc.img",
        "mask header": "OAS1_0001_MR1_mpr_n4_anon_111_t88_masked_gfc.hdr",
    }
    assert "9 NIfTI files left out" in said[0]


@pytest.mark.parametrize(
    "labels, ending", [("masks", ""), ("labels", ""), ("masks", "_brain_mask"), ("Masks", "-mask")]
)
def test_images_beside_masks(tmp_path: Path, labels: str, ending: str) -> None:
    for name in ("P1_a", "P1_b", "P2_a"):
        touch(tmp_path, f"images/{name}.nii.gz", f"{labels}/{name}{ending}.nii.gz")
    said: list[str] = []
    assert found(tmp_path, said) == {
        name: (name[:2], f"{labels}/{name}{ending}.nii.gz") for name in ("P1_a", "P1_b", "P2_a")
    }
    assert "before their first _ or - counts as the person (P1, P2)" in said[0]


def test_nnunet(tmp_path: Path) -> None:
    touch(tmp_path, "imagesTr/s1_0000.nii.gz", "labelsTr/s1.nii.gz", "imagesTs/s2_0000.nii.gz", "dataset.json")
    assert found(tmp_path) == {"s1": ("s1", "labelsTr/s1.nii.gz")}


def test_persons_by_folder_or_each_scan_for_itself(tmp_path: Path) -> None:
    for name in ("a/t1", "b/t1", "c/t1"):
        touch(tmp_path, f"x/{name}.nii", f"x/{name}_mask.nii")
    said: list[str] = []
    assert [group for group, _ in found(tmp_path, said).values()] == ["x/a", "x/b", "x/c"]
    assert "the folder that a scan lies in counts as its person" in said[0]
    for name in ("scan_1", "scan_2"):
        touch(tmp_path / "flat", f"images/{name}.nii", f"masks/{name}.nii")
    assert [group for group, _ in found(tmp_path / "flat", said).values()] == ["scan_1", "scan_2"]
    assert "each scan counts as a person of its own" in said[-1]


# ---------------------------------------------------------------- the user's own table or pattern


def test_a_table_and_a_pattern(tmp_path: Path) -> None:
    touch(tmp_path, "x/one.nii", "y/eins.nii", "x/two.nii", "y/zwei.nii")
    table = tmp_path / "t.csv"
    table.write_text("image,mask,person\nx/one.nii,y/eins.nii,A\nx/two.nii,y/zwei.nii,A\n")
    assert found(tmp_path, manifest=table) == {"one": ("A", "y/eins.nii"), "two": ("A", "y/zwei.nii")}
    said: list[str] = []
    table.write_text(table.read_text().replace("person", "note"))
    assert found(tmp_path, said, manifest=table)["two"] == ("two", "y/zwei.nii")
    assert "before their first _ or - counts as the person (one, two)" in said[0]
    assert [r.key for r in find_inputs(table)] == ["one", "two"]
    table.write_text("image\nx/one.nii\n")
    assert [r.key for r in find_inputs(table)] == ["one"]
    with pytest.raises(BadInput, match=r"t.csv names no label for it \(1 of 1 image\)"):
        find_records(tmp_path, manifest=table)
    touch(tmp_path, "f/P1-1-t1.nii", "f/P1-1-bm.nii", "f/P1-2-t1.nii", "f/P1-2-bm.nii")
    assert found(tmp_path, pattern=("f/{group}-{id}-t1.nii", "f/{group}-{id}-bm.nii")) == {
        "1": ("P1", "f/P1-1-bm.nii"), "2": ("P1", "f/P1-2-bm.nii")
    }  # fmt: skip
    with pytest.raises(BadInput, match=r"data\.pattern names no label"):
        find_records(tmp_path, pattern=("f/{group}-{id}-t1.nii",))


# ---------------------------------------------------------------- predict


def test_predict_says_what_it_leaves_out_and_why(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "sub-1/anat/sub-1_T1w.nii.gz",
        "sub-1/anat/sub-1_T2w.nii.gz",
        "sub-1/anat/sub-1_MP2RAGE.nii.gz",
        "sub-1/func/sub-1_task-rest_bold.nii.gz",
        "sub-1/anat/sub-1_desc-brain_mask.nii.gz",
        "derivatives/sub-1_desc-preproc_T1w.nii.gz",
        "sub-2/orig.mgz",
        "notes.txt",
    )
    said: list[str] = []
    assert [r.key for r in find_inputs(tmp_path, said)] == ["sub-1_T1w"]
    reasons = [line.partition(" left out, ")[2] for line in said]
    assert reasons == [
        "named as masks, labels or stripped brains: sub-1/anat/sub-1_desc-brain_mask.nii.gz",
        "of other modalities by their folders or names: sub-1/anat/sub-1_T2w.nii.gz, "
        "sub-1/func/sub-1_task-rest_bold.nii.gz",
        "below derivatives: derivatives/sub-1_desc-preproc_T1w.nii.gz",
        "not named as T1 scans, as others are: sub-1/anat/sub-1_MP2RAGE.nii.gz",
        "not NIfTI (convert them first): sub-2/orig.mgz",
    ]


def test_predict_takes_no_labels_that_are_named_as_scans(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.nii", "masks/a.nii")
    said: list[str] = []
    assert [r.files["image"] for r in find_inputs(tmp_path, said)] == [tmp_path / "images/a.nii"]
    assert said == [f"{tmp_path}: 1 file left out, in folders of labels: masks/a.nii"]


def test_predict_of_a_pair_of_files(tmp_path: Path) -> None:
    touch(tmp_path, "a.hdr", "a.img", "b.img", "C.NII.GZ", "D.IMG", "D.HDR")
    said: list[str] = []
    assert [r.files["image"].name for r in find_inputs(tmp_path, said)] == ["C.NII.GZ", "D.IMG", "a.img"]
    assert said == [f"{tmp_path}: 1 file left out, without their .hdr: b.img"]
    assert [r.files["image"].name for r in find_inputs(tmp_path / "a.hdr")] == ["a.img"]
    with pytest.raises(BadInput, match=r"or .img with .hdr beside it"):
        find_inputs(tmp_path / "b.img")


def test_the_trainings_pattern_that_fits_nothing_elsewhere_is_said(tmp_path: Path) -> None:
    touch(tmp_path, "a.nii")
    said: list[str] = []
    assert [r.key for r in find_inputs(tmp_path, said, pattern=("x/{id}.nii", "y/{id}.nii"))] == ["a"]
    assert "fits none of the 1 files" in said[0]


def test_a_training_says_who_counts_as_a_person(tmp_path: Path) -> None:
    """No name says it: a wrong guess would let one person train and validate."""
    touch(tmp_path, *(f"{folder}/P{n}_{scan}.nii" for folder in ("images", "masks") for n in (1, 2) for scan in "ab"))
    project = BrainUNet(BrainConfig())
    with collect_left_out() as left_out:
        project.records(tmp_path)
    (note,) = left_out
    assert (note.rule, note.level) == (LEFT_OUT, "note")  # which a training prints
    assert "before their first _ or - counts as the person (P1, P2)" in note.message
