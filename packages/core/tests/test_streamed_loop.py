"""A training whose records are fetched as they are used: its log, its advice, its summary, its resume."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from runner_core.output.report import render
from runner_core.output.runfolder import RunFolder
from runner_core.training.timing import Fetching, Timing, rates

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy

ADVICE = "What helps: patience"


class Link:
    """Counters of a link: every window the same."""

    def __init__(self, files=100.0, seconds=1.0):
        self.found = {"files": files, "bytes": files * 2e6, "fetched_seconds": seconds, "hits": 3, "misses": 1}

    def __call__(self):
        return self.found


def window(wait, busy):
    return Timing(wait=round(wait * 1e9), compute=round(busy * 1e9), total=round((wait + busy) * 1e9), samples=10)


def fetching(link):
    said = []
    return Fetching(link, said.append, ADVICE), said


def lines(made, windows):
    """Return the log's numbers about these windows."""
    got = []
    for each in windows:
        made.collect()
        got.append(made.event(0, each)["timing"])
    return got


def test_needs_and_gives():
    """100 files a window that would take half a second without waiting, fetched in one second."""
    made, said = fetching(Link())
    first, second = lines(made, [window(0.5, 0.5), window(0.5, 0.5)])
    assert first == second
    assert first["images_per_second_needed"] == 200
    assert first["images_per_second_link"] == 100
    assert first["megabytes_per_second"] == 200
    assert (first["images"], first["records_there"], first["records_waited_for"]) == (100, 3, 1)
    assert said == [f"data wait 50%: training needs 200 images/s, the link gives 100. {ADVICE}"]
    assert made.summary(7) == {"bad": 7, **first, "images": 200, "records_there": 6, "records_waited_for": 2}


def test_it_is_said_at_most_at_every_tenth_line_and_never_at_the_first():
    made, said = fetching(Link())
    told = []
    for number in range(1, 32):
        lines(made, [window(0.5, 0.5)])
        if len(said) > len(told):
            told.append(number)
    assert told == [2, 12, 22]


def test_little_waiting_is_not_said():
    made, said = fetching(Link())
    lines(made, [window(0.04, 0.96)] * 5)
    assert not said


def test_nothing_fetched_is_not_said():
    """All is there already, and something else is slow."""
    made, said = fetching(Link(0, 0))
    got = lines(made, [window(0.5, 0.5)] * 5)
    assert got[-1]["images_per_second_link"] == got[-1]["images_per_second_needed"] == 0
    assert not said


def test_a_link_that_suffices_wants_more_look_ahead():
    made, said = fetching(Link(100, 0.2))
    lines(made, [window(0.5, 0.5)] * 2)
    assert said == [
        "data wait 50%, though training needs 200 images/s, the link gives 500: raise train.prefetch, to fetch further "
        "ahead"
    ]


def test_counts_before_a_checkpoint_belong_to_the_next_line():
    link = Link()
    made, _ = fetching(link)
    made.collect()
    made.collect()
    assert made.event(0, window(0, 1))["timing"]["images"] == 200
    made.collect()
    made.forget()
    assert made.event(0, window(0, 1))["timing"]["images"] == 100


def test_rates_of_nothing_are_zero():
    assert set(rates({}).values()) == {0}


class StreamedStore(toy.MemoryStore):
    """`bad` cannot be read; the first of `among` stands in. Every record counts as a file of 1 MB and a tenth of a
    second."""

    streamed = True
    block = 2

    def __init__(self, bad=()):
        super().__init__(records=8)
        images = [image[:7] for image in map(self.arrays["image"].read, range(8))]
        self.arrays = {"image": toy.Rows(images), "mask": toy.Rows([(i > 128).astype(np.uint8) for i in images])}
        self.bad, self.begun, self.files = set(bad), [], 0

    def begin(self, folder):
        self.begun.append(folder)

    def expect(self, records):
        pass

    def usable(self, records, positions, epoch, among):
        self.files += len(set(records.tolist()))
        good = next(r for r in among.tolist() if r not in self.bad)
        return np.array([good if r in self.bad else r for r in records.tolist()], np.int64)

    def counters(self):
        files, self.files = self.files, 0
        return {"files": files, "bytes": 1e6 * files, "fetched_seconds": 0.1 * files, "hits": 0, "misses": files}


def run(folder, bad=(), project=toy.Toy, display=None, **settings):
    resume = settings.pop("resume", False)
    config = toy.small(**{"train__epochs": 4, "log__every": 3, "checkpoint__every_steps": 2, **settings})
    store = StreamedStore(bad)
    data = toy.make_data(project(config), store)
    summary = toy.run(config, folder, resume=resume, data=data, project=project, display=display)
    assert store.begun == [folder]
    return summary


def of(folder, kind):
    return [event for event in RunFolder(folder).events() if event["event"] == kind]


@pytest.mark.torch
def test_a_line_of_data_follows_every_train_line(tmp_path):
    """It counts the samples that were replaced until then: one record of six, 7 of its 42 samples an epoch, of which
    the last two, with what does not fill a batch, are left out."""
    summary = run(tmp_path, bad=[3])
    events = [event for event in RunFolder(tmp_path).events() if event["event"] in ("train", "data")]
    assert [event["event"] for event in events] == ["train", "data"] * (len(events) // 2)
    assert [e["step"] for e in events[::2]] == [e["step"] for e in events[1::2]] == [1, 3, 6, 9, 12, 15, 18, 20]
    bad = [event["bad"] for event in of(tmp_path, "data")]
    assert bad == sorted(bad)
    assert 20 <= bad[-1] <= 28
    assert summary["streaming"]["bad"] == bad[-1]
    assert summary["streaming"]["images_per_second_link"] == 10
    timing = of(tmp_path, "data")[-1]["timing"]
    assert timing["images"] > 0
    assert timing["images_per_second_needed"] > 0


@pytest.mark.torch
def test_what_validation_fetches_is_not_counted(tmp_path):
    """Two records are validated after each epoch, one at least with every batch."""
    one, other = tmp_path / "one", tmp_path / "other"
    run(one, validate__every=1)
    run(other, validate__every=4)
    images = [sum(e["timing"]["images"] for e in of(folder, "data")) for folder in (one, other)]
    assert images[0] == images[1]


@pytest.mark.torch
def test_other_stores_have_no_line_of_data(tmp_path):
    summary = toy.run(toy.small(), tmp_path)
    assert not of(tmp_path, "data")
    assert "streaming" not in summary


class Kill(BaseException):
    """Nothing in the runner catches this."""


@pytest.mark.torch
@pytest.mark.parametrize("calls", [1, 4, 9, 14, 18])
def test_killed_and_resumed_the_log_is_the_same(tmp_path, calls):
    """The samples replaced before the checkpoint count, those after it once: checkpoints lie between train lines."""

    class Mortal(toy.Toy):
        count = 0

        def step(self, model, batch, progress):
            Mortal.count += 1
            if Mortal.count == calls:
                raise Kill
            return super().step(model, batch, progress)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, bad=[1, 4])
    with pytest.raises(Kill):
        run(killed, bad=[1, 4], project=Mortal)
    run(killed, bad=[1, 4], resume=True)
    toy.assert_equal_runs(whole, killed)
    assert of(whole, "data")[-1]["bad"] > 0


@pytest.mark.torch
def test_the_report_has_a_section(tmp_path):
    run(tmp_path, bad=[3])
    (tmp_path / "config.yaml").write_text("project: toy\n")
    (tmp_path / "bad_samples.jsonl").write_text(
        '{"record": "r3", "file": "r3.npy", "reason": "r3.npy: <no> image", "kind": "corrupt", "epoch": 0, '
        '"position": 1, "replaced_by": "r0"}\n{"record": "r4", "fi'
    )
    page = render(RunFolder(tmp_path))
    section = page.partition("<h2>Streaming</h2>")[2]
    assert "the link gives" in section
    assert "r3.npy: &lt;no&gt; image" in section
    assert "r4" not in section.partition("</section>")[0]
    (tmp_path / "log.jsonl").write_text("")
    assert "Streaming" not in render(RunFolder(tmp_path))
