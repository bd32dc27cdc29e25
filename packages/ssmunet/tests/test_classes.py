"""Names of classes come from the settings, from the data, or are numbers; never from another data set."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spectral
from runner_core import BadInput
from runner_ssmunet.classes import FILE, Classes, find
from runner_ssmunet.config import SSMConfig
from runner_ssmunet.files import find_inputs, find_records
from runner_ssmunet.phantom import AMOUNTS
from runner_ssmunet.project import SSMUNet

WriteCore = Callable[..., Path]


def found(root: Path, ignore: int | None = 0) -> Classes:
    return find(root, find_records(root, "patient"), ignore)


def test_without_any_name_they_are_numbers_and_check_says_so(write_core: WriteCore) -> None:
    root = write_core().parent
    project = SSMUNet(SSMConfig())
    records = project.records(root)
    assert project.outputs == ("class 1", "class 2", "class 3")
    assert not {*project.outputs} & {*AMOUNTS}
    said = [f.message for f in project.checks().records(records) if f.rule == "classes"]
    assert said[0].startswith("nothing names the classes: they are called by their labels. classes.csv")
    assert said[3].startswith("class 2: ")


def test_a_table_names_and_colours_them(write_core: WriteCore) -> None:
    root = write_core().parent
    text = "\ufefflabel, name ,Colour\r\n0,glass,\r\n3,blood,#ff0000\r\n1,stroma,00FF00\r\n\r\n"
    (root / FILE).write_text(text, "utf-8", newline="")
    assert found(root) == Classes(("stroma", "class 2", "blood"), {1: (0, 255, 0), 3: (255, 0, 0)}, str(root / FILE))
    project = SSMUNet(SSMConfig())
    records = project.records(root)
    assert project.outputs == ("stroma", "class 2", "blood")
    assert f"the classes are named by {root / FILE}" in " ".join(f.message for f in project.checks().records(records))


@pytest.mark.parametrize("by_table", [True, False])
def test_a_list_that_is_too_short_is_one_error_not_one_for_each_core(write_core: WriteCore, by_table: bool) -> None:
    root = {write_core(f"core_{n}").parent for n in range(1, 11)}.pop()
    config = SSMConfig()
    if by_table:
        (root / FILE).write_text("label,name\n1,a\n2,b\n")
    else:
        config.data.classes = ("a", "b")
    with pytest.raises(BadInput) as caught:
        SSMUNet(config).records(root)
    source = str(root / FILE) if by_table else "data.classes"
    assert str(caught.value) == (
        f"{source} names labels 1 to 2, but 10 of 10 cores have others (3). Complete classes.csv (or "
        "data.classes), or set data.ignore where one stands for pixels that nobody annotated."
    )


def test_a_label_of_one_core_alone_is_its_own_fault(write_core: WriteCore, make_core: Callable[..., Any]) -> None:
    labels = make_core()["y"].copy()
    labels[:2, 3] = 9
    root = write_core("core_1", y=labels).parent
    write_core("core_2")
    write_core("core_3")
    (root / FILE).write_text("label,name\n1,a\n2,b\n3,c\n")
    project = SSMUNet(SSMConfig())
    first, second, _ = project.records(root)
    project.decode(second)
    with pytest.raises(BadInput, match=r"core_1.npz: label 9 in 2 pixels is no class"):
        project.decode(first)


def test_the_settings_are_over_the_table(write_core: WriteCore) -> None:
    root = write_core().parent
    (root / FILE).write_text("label,name\n1,a\n2,b\n3,c\n")
    config = SSMConfig()
    config.data.classes = ("x", "y", "z")
    project = SSMUNet(config)
    project.records(root)
    assert project.outputs == ("x", "y", "z")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no row below the names of its columns"),
        ("label|name\n1|a\n", "no column 'label'.*It needs the columns label and name"),
        ("label,name\n1,a\n1,b\n", "line 3: '1' is no label of its own"),
        ("label,name\nx,a\n", "line 2: 'x' is no label of its own"),
        ("label,name\n1,a,b\n", "line 2 has 3 values, the first line 2 names"),
        ("label,name\n1,a\n2,a\n", "two classes are called a"),
        ("label,name\n1,\n", "line 2 has no name"),
        ("label,name\n0,glass\n", "names no class"),
        ("label,name\n256,a\n", "labels 1 to 255"),
        ("label,name\n1,no_tissue\n", "a class is called no_tissue"),
        ('label,name\n1,"gl\nand"\n', r"a class is called 'gl\\nand'; a name is one line"),
        ("label,name,colour\n1,a,red\n", "line 2: 'red' is no colour"),
        ("label,name\n1,\0\n", "is not UTF-8 text"),
        ('label,name\n1,"a\n', "not a readable table"),
    ],
)
def test_tables_that_are_wrong(write_core: WriteCore, text: str, said: str) -> None:
    root = write_core().parent
    (root / FILE).write_text(text)
    with pytest.raises(BadInput, match=said) as caught:
        found(root)
    assert str(root / FILE) in str(caught.value)


@pytest.mark.timeout(20)
def test_a_pipe_is_no_table(write_core: WriteCore) -> None:
    root = write_core().parent
    os.mkfifo(root / FILE)
    with pytest.raises(BadInput, match=r"classes\.csv: a named pipe"):
        found(root)


def test_labels_with_gaps_are_not_counted_as_classes(write_core: WriteCore, make_core) -> None:
    labels = make_core()["y"].astype(np.uint8)
    root = write_core(y=np.where(labels == 0, 255, labels)).parent
    assert found(root, 255).names == ("class 1", "class 2", "class 3")
    with pytest.raises(BadInput, match=r"not 1, 2, … without a gap: 1, 2, 3, 255\. Write classes.csv"):
        found(root)


def test_a_damaged_core_is_left_to_its_own_refusal(write_core: WriteCore) -> None:
    root = write_core().parent
    write_core("core_2", meta={"patient_id": "P2"}, y=np.full((12, 14), 0.5))
    assert found(root).names == ("class 1", "class 2", "class 3")


def write_classification(path: Path, labels: np.ndarray, names: list[str]) -> None:
    colours = [(10 * i, 20 * i, 30 * i) for i in range(len(names))]
    spectral.envi.save_classification(
        str(path), labels, class_names=names, class_colors=colours, ext=".dat", force=True
    )


def test_an_envi_classification_beside_a_core_gives_labels_names_and_colours(write_core: WriteCore, make_core) -> None:
    labels = make_core()["y"]
    core = write_core(y=None)
    write_classification(core.with_name("core_1.labels.hdr"), labels, ["Unclassified", "gland", "stroma", "fat"])
    (record,) = find_records(core.parent, "patient")
    assert record.files["labels data"] == core.with_name("core_1.labels.dat")
    project = SSMUNet(SSMConfig())
    (record,) = project.records(core.parent)
    assert project.outputs == ("gland", "stroma", "fat")
    assert project.classes.colours == {1: (10, 20, 30), 2: (20, 40, 60), 3: (30, 60, 90)}
    np.testing.assert_array_equal(project.decode(record).arrays["label"], labels)
    assert all(not role.startswith("labels") for role in find_inputs(core.parent)[0].files)
    other = write_core("core_2", y=None, meta={"patient_id": "P2"})
    write_classification(other.with_name("core_2.labels.hdr"), labels, ["Unclassified", "stroma", "gland", "fat"])
    with pytest.raises(BadInput, match=r"core_2.labels.hdr and .*core_1.labels.hdr name other classes"):
        SSMUNet(SSMConfig()).records(core.parent)


def test_a_network_is_not_scored_on_data_that_call_its_labels_otherwise(write_core: WriteCore) -> None:
    root = write_core().parent
    (root / FILE).write_text("label,name\n1,a\n2,b\n3,c\n")
    trained = SSMUNet(SSMConfig())
    trained.records(root)
    network = SSMUNet(SSMConfig())
    network.statistics = {"classes": {"names": ["a", "b", "c"], "colours": [[2, [1, 2, 3]]]}}
    network.records(root)
    assert network.classes == Classes(("a", "b", "c"), {2: (1, 2, 3)}, "the training data")
    (root / FILE).write_text("label,name\n1,a\n2,c\n3,b\n")
    with pytest.raises(BadInput, match="label 2 is 'c', but the network was trained with label 2 as 'b'"):
        network.records(root)
    (root / FILE).unlink()
    network.records(root)
    assert network.outputs == ("a", "b", "c")
