"""Guess a table of images and labels from the names below a folder, for the user to correct (`runner P init-data`)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.files import split_of_folder, unique_keys, walk
from runner_core.base.text import first_few
from runner_core.contract.facets import GuessedTable, PairFiles
from runner_core.data.pairs.rows import GROUP, ID, is_table
from runner_core.data.pairs.table import read_table

_LABEL = re.compile(
    r".*mask.*|.*labels?|seg|segs|segm.*|dseg|gt|ground|truth|groundtruth|annot.*|roi|rois|staple|manual|lesions?"
)
"""Words in a name that mark a label, in small letters."""
_PLAIN = re.compile(r"images?.*|scans?|volumes?|train.*|val.*|test.*|anat|data|raw|derivatives|sourcedata")
"""Names of folders that say nothing of a record."""
_GROUP = re.compile(r"(?i)\b((?:sub|subj|subject|pat|patient|person|participant|scroll|slide)[-_]?[A-Za-z0-9]+)")
UNLABELLED = "images for which no label was found"
_WORD = re.compile(r"[^-_.\s]+")
_FIRST = ("t1w", "t1", "t1gd", "t1c")
"""Kinds of images that are taken if one label has several, in this order."""


@dataclass(frozen=True)
class Row:
    """A row of the table: an image, its label, and what is guessed of them."""

    id: str
    group: str
    split: str
    image: Path
    label: Path | None


@dataclass
class Guess:
    """Rows of a table, how they were guessed, and files that are left out, by reason."""

    rows: list[Row]
    groups: str
    left_out: dict[str, list[Path]] = field(default_factory=dict)

    def table(self, root: Path) -> GuessedTable:
        """Return what `init-data` writes and shows of the folder `root`."""
        rows, some = self.rows, any(row.split for row in self.rows)
        groups = sorted({row.group for row in rows})
        return GuessedTable(
            [
                {
                    "id": row.id,
                    "group": row.group,
                    "split": (row.split or "train") if some else "",
                    "image": row.image,
                    "label": row.label or "",
                }
                for row in rows
            ],
            "image",
            [
                f"{row.image.relative_to(root)} with {row.label.relative_to(root) if row.label else 'no label'}, "
                f"group {row.group}"
                for row in rows
            ],
            [groups_note(groups, self.groups)],
            self.left_out,
            f", {sum(row.label is not None for row in rows):,} with a label",
        )


def groups_note(groups: Sequence[str], how: str) -> str:
    """Return the line that says which groups were guessed, and how."""
    return f"groups, which no split cuts: {len(groups):,} ({first_few(groups)}), guessed: {how}"


def guess_pairs(root: Path, files: PairFiles) -> Guess:
    """Guess which files below `root` are images, which are their labels, and which images belong together."""
    readable, others = _below(root, files.is_image)
    labels = [path for path in readable if _is_label(path.relative_to(root), files.stem)]
    images = [path for path in readable if path not in set(labels)]
    out: dict[str, list[Path]] = defaultdict(list)
    out["not of a format that this project reads"] = others
    partner = _partners(root, images, labels, files.stem, out)
    if files.labelled:
        lost = [image for image in images if partner.get(image) is None and not any(image in p for p in out.values())]
        out[UNLABELLED] = lost
    taken = {path for paths in out.values() for path in paths}
    kept = sorted((image for image in images if image not in taken), key=lambda path: natural(str(path)))
    used = set(partner.values())
    out["labels for which no image was found"] = [p for p in labels if p not in used and p not in taken]
    keys = unique_keys(kept, root, files.stem)
    groups, how = _groups(kept, root, files.stem)
    rows = [
        Row(keys[image], groups[image], split_of_folder(image, root) or "", image, partner.get(image)) for image in kept
    ]
    return Guess(rows, how, {why: sorted(paths) for why, paths in out.items() if paths})


def name_endings(paths: Sequence[Path], stem: Callable[[Path], str]) -> tuple[str, str] | None:
    """Return the two endings of names that come in pairs, that of the images first; None if they do not come so.

    They are .nii.gz and _skull.nii.gz, or _head.nii.gz and _skull.nii.gz. Of these, the ending whose files are larger
    is first: an image takes more room than its label.
    """
    return _added_ending(paths, stem) or _last_words(paths, stem)


def _added_ending(paths: Sequence[Path], stem: Callable[[Path], str]) -> tuple[str, str] | None:
    """Return the endings if half of the names are the other half with one ending added to each."""
    plain = {path.with_name(stem(path)): path for path in paths}
    endings, used = set(), set()
    for path in paths:
        own = stem(path)
        cuts = [found.start() for found in re.finditer(r"(?<!^)[-_. ]", own)]
        if cut := next((n for n in cuts if path.with_name(own[:n]) in plain), None):
            image = plain[path.with_name(own[:cut])]
            used |= {image, path}
            endings.add((image.name[cut:], path.name[cut:]))
    return endings.pop() if len(endings) == 1 and len(used) == len(paths) else None


def _last_words(paths: Sequence[Path], stem: Callable[[Path], str]) -> tuple[str, str] | None:
    """Return the endings if each name but for its last word occurs twice, with the same two words."""
    pairs: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    for path in paths:
        known, joint, last = stem(path).rpartition("_")
        if not joint:
            return None
        pairs[path.parent, known][joint + last + path.name.removeprefix(stem(path))] = path
    endings = {tuple(sorted(pair)) for pair in pairs.values()}
    if len(endings) != 1 or len(next(iter(endings))) != 2:
        return None
    one, other = next(iter(endings))
    size = {end: sum(pair[end].stat().st_size for pair in pairs.values()) for end in (one, other)}
    return (one, other) if size[one] >= size[other] else (other, one)


def _below(root: Path, is_image: Callable[[Path], bool]) -> tuple[list[Path], list[Path]]:
    """Return what the project could read, without entering folders that it reads whole (.zarr), and other files."""
    found: list[Path] = []
    others: list[Path] = []
    for folder, folders, names in walk(root):
        own = [name for name in folders if is_image(folder / name)]
        folders[:] = [name for name in folders if name not in own]
        for name in [*own, *names]:
            (found if is_image(folder / name) else others).append(folder / name)
    return found, others


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _is_label(path: Path, stem: Callable[[Path], str]) -> bool:
    return any(_LABEL.fullmatch(word) for word in [*_words(stem(path)), *(part.lower() for part in path.parts[:-1])])


def _key(path: Path, stem: Callable[[Path], str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders that say something of a record, and the words of its name without those of labels."""
    folders = [part.lower() for part in path.parts[:-1]]
    plain = tuple(part for part in folders if not (_LABEL.fullmatch(part) or _PLAIN.fullmatch(part)))
    return plain, tuple(word for word in _words(stem(path)) if not _LABEL.fullmatch(word))


def _partners(
    root: Path,
    images: Sequence[Path],
    labels: Sequence[Path],
    stem: Callable[[Path], str],
    out: dict[str, list[Path]],
) -> dict[Path, Path]:
    """Return the label of each image; files that compete with a chosen one go into `out`."""
    by_folder: dict[tuple[str, ...], list[tuple[tuple[str, ...], Path]]] = defaultdict(list)
    for image in images:
        folders, words = _key(image.relative_to(root), stem)
        by_folder[folders].append((words, image))
    partner: dict[Path, Path] = {}
    for label in sorted(labels, key=lambda path: (len(stem(path)), str(path))):  # the plainest name first
        folders, words = _key(label.relative_to(root), stem)
        near = [(own, image) for own, image in by_folder[folders] if own[: len(words)] == words]
        exact = [image for own, image in near if own == words]
        found = exact or [image for _, image in near]
        if not words and len(by_folder[folders]) > 1:  # a label named "mask" alone, beside several images
            found = [image for _, image in by_folder[folders]]
        if not found:
            continue
        chosen = min(found, key=lambda image: (_rank(image, stem), stem(image)))
        if chosen in partner:
            out["another label of an image that has one"].append(label)
            continue
        partner[chosen] = label
        others = [image for image in found if image != chosen]
        out[f"further images beside one label, of which {_kind(chosen, words, stem)} is taken"] += others
    return partner


def _rank(image: Path, stem: Callable[[Path], str]) -> int:
    words = _words(stem(image))
    return next((rank for rank, kind in enumerate(_FIRST) if kind in words), len(_FIRST))


def _kind(image: Path, words: Sequence[str], stem: Callable[[Path], str]) -> str:
    return "_".join(_words(stem(image))[len(words) :]) or stem(image)


def _groups(images: Sequence[Path], root: Path, stem: Callable[[Path], str]) -> tuple[Mapping[Path, str], str]:
    """Return the group of each image, and in words how it was guessed."""
    if listed := _listed_groups(images, root, stem):
        return listed
    named = {image: _named_group(image.relative_to(root), stem) for image in images}
    if images and all(named.values()):
        return {image: group or "" for image, group in named.items()}, "named in the path, as sub-01"
    folders = {image: _own_folder(image.relative_to(root)) for image in images}
    if all(folders.values()) and len(set(folders.values())) > 1:
        return {image: folder or "" for image, folder in folders.items()}, "the folder that the image lies in"
    first = _first_words(images, stem)
    if len(set(first.values())) > 1:
        many = max(Counter(first.values()).values()) > 1
        how = "what names begin with" if many else "each image alone, since all names begin differently"
        return first, how
    return {image: stem(image) for image in images}, "each image alone: no name says which belong together"


def _listed_groups(
    images: Sequence[Path], root: Path, stem: Callable[[Path], str]
) -> tuple[dict[Path, str], str] | None:
    """Return the groups that a table in the folder gives for all images, by their names; None if there is none."""
    for path in sorted(file for file in root.iterdir() if is_table(file)):
        with suppress(BadInput):
            table = read_table(path, "")
            ids, groups = table.column(*ID), table.column(*GROUP)
            known = dict(zip(ids or (), groups or (), strict=False))
            if images and all(known.get(stem(image)) for image in images):
                return {image: known[stem(image)] for image in images}, f"from {path.name}"
    return None


def _named_group(path: Path, stem: Callable[[Path], str]) -> str | None:
    for text in (*path.parts[:-1], stem(path)):
        if found := _GROUP.search(text):
            return found[1]
    return None


def _own_folder(path: Path) -> str | None:
    """Return the outermost folder whose name says something of the record."""
    plain = (part for part in path.parts[:-1])
    return next((p for p in plain if not (_LABEL.fullmatch(p.lower()) or _PLAIN.fullmatch(p.lower()))), None)


def _first_words(images: Sequence[Path], stem: Callable[[Path], str]) -> Mapping[Path, str]:
    """Return how each name begins: the words that all share, and the first that differs."""
    words = {image: _WORD.findall(stem(image)) for image in images}
    shared = 0
    while all(len(own) > shared for own in words.values()) and len({own[shared] for own in words.values()}) == 1:
        shared += 1
    return {image: "_".join(own[: shared + 1]) or stem(image) for image, own in words.items()}


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts p2 before p10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
