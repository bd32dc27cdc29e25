"""docs/record.py: what a command prints in a terminal, as an animated image."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from workspace import ROOT

SVG = "{http://www.w3.org/2000/svg}"
PRINTS = r"""
import sys, time
sys.stdout.write("first\nbar 1%\r"); sys.stdout.flush(); time.sleep(0.3)
for share in range(100): sys.stdout.write(f"\rbar {share // 10}0%"); sys.stdout.flush(); time.sleep(0.005)
sys.stdout.write("\x1b[Kbar 99% <é>\n\x1b[1A\x1b[32m\x1b[2K\rdone & dusted\x1b[0m\n" + "x" * 120 + "\n")
sys.exit(int(sys.argv[1]))
"""


def recorded(folder: Path, status: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, ROOT / "docs" / "record.py", folder / "out.svg", sys.executable, "-c", PRINTS, status]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_frames_show_the_screen_as_it_was(tmp_path: Path) -> None:
    done = recorded(tmp_path, "0")
    assert done.returncode == 0, done.stderr
    frames = ElementTree.parse(tmp_path / "out.svg").getroot().findall(f"{SVG}g")
    screens = [[text.text for text in frame.findall(f"{SVG}text")] for frame in frames]
    assert screens[-1][-4:] == ["first", "done & dusted", "x" * 100, "x" * 20]
    assert any(screen[-2:] == ["first", "bar 1%"] for screen in screens)
    moving = [screen[-1] for screen in screens if re.fullmatch("bar [1-8]0%", screen[-1])]
    assert moving, "a bar that moves all the time is seen"


def test_a_command_that_fails_makes_no_image(tmp_path: Path) -> None:
    assert "failed" in recorded(tmp_path, "3").stderr
    assert not (tmp_path / "out.svg").exists()
