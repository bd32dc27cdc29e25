"""Make pages of the site from files outside docs/: a hook of MkDocs (mkdocs.yml names it).

The READMEs become pages, with their links turned to the site's pages: README.md is about.md, packages/X/README.md
is projects/X.md (an extension's: extensions/X.md), examples/X/README.md is examples/X.md. New READMEs appear at the
next build. The tables of settings, commands and checks are read from the source text, so building the site imports
neither runner nor a framework.
"""

from __future__ import annotations

import ast
import posixpath
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LOG = get_plugin_logger("pages")
ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "packages/core/src/runner_core"
PLUGINS = sorted(p.parent for p in (ROOT / "packages").glob("*/pyproject.toml") if p.parent.name != "core")
PACKAGES = [p for p in PLUGINS if '"runner.projects"' in (p / "pyproject.toml").read_text(encoding="utf-8")]
EXTENSIONS = [p for p in PLUGINS if p not in PACKAGES]
EXAMPLES = sorted(p.parent for p in (ROOT / "examples").glob("*/README.md"))

PAGE_OF = {
    "README.md": "about.md",
    "CHANGELOG.md": "changes.md",
    "packages/core/README.md": "reference/core.md",
    **{f"packages/{p.name}/README.md": f"projects/{p.name}.md" for p in PACKAGES},
    **{f"packages/{p.name}/README.md": f"extensions/{p.name}.md" for p in EXTENSIONS},
    **{f"examples/{p.name}/README.md": f"examples/{p.name}.md" for p in EXAMPLES},
}
"""File of the repository → page of the site; files in docs/ are pages by themselves."""
FILE_OF = {page: file for file, page in PAGE_OF.items()}

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCED = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^<!-- (settings|commands|checks|projects) -->$", re.MULTILINE)


# ---------------------------------------------------------------- MkDocs' hooks


def on_config(config: MkDocsConfig) -> None:
    """Put every project's page under Projects, and every extension's and example's under Extend."""
    sections = {title: pages for entry in config.nav or () for title, pages in entry.items()}
    sections["Projects"] += [{p.name: f"projects/{p.name}.md"} for p in PACKAGES]
    sections["Extend"] += [{f"Extension: {p.name}": f"extensions/{p.name}.md"} for p in EXTENSIONS]
    sections["Extend"] += [{f"Example: {p.name}": f"examples/{p.name}.md"} for p in EXAMPLES]


def on_files(files: Files, config: MkDocsConfig) -> None:
    for file, page in PAGE_OF.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))


def on_page_markdown(text: str, page: Page, **_: Any) -> str:
    tables = {
        "settings": settings_table,
        "commands": commands_table,
        "checks": checks_table,
        "projects": projects_table,
    }
    text = TABLE.sub(lambda found: tables[found[1]](), text)
    return linked(text, page.file.src_uri)


def on_post_page(output: str, page: Page, **_: Any) -> None:
    """Warn of a page that loads something from another host, for the site must work without network."""
    for tag in re.findall(r"""<(?:script|img|iframe|link)\b[^>]*(?:src|href)=["']?https?://[^>]*>""", output):
        LOG.warning("%s loads from another host: %s", page.file.src_uri, tag)


# ---------------------------------------------------------------- links


def linked(text: str, page: str) -> str:
    """Return `text` with relative links to files of the repository turned to links to pages of the site."""
    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(lambda found: _link(found, page), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], page: str) -> str:
    """Return a link to a page, or the name of a file that is not a page; MkDocs reports missing files."""
    image, label, target = found.groups()
    path, hash_, anchor = target.partition("#")
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return found[0]
    file = posixpath.normpath(posixpath.join(posixpath.dirname(FILE_OF.get(page, f"docs/{page}")), path))
    if file not in PAGE_OF and not file.startswith("docs/"):
        return f"{label} (`{file}`)" if (ROOT / file).exists() else found[0]
    there = PAGE_OF.get(file) or file.removeprefix("docs/")
    return f"{image}[{label}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{hash_}{anchor})"


# ---------------------------------------------------------------- tables from the source text


class Field(NamedTuple):
    name: str
    type: ast.expr
    default: ast.expr | None
    text: str


class Kind(NamedTuple):
    """A dataclass as its source text has it."""

    text: str
    bases: list[str]
    fields: list[Field]


def projects_table() -> str:
    rows = ["| project | what it does |", "|---|---|"]
    for package in PACKAGES:
        about = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]["description"]
        rows.append(f"| [`{package.name}`](../../packages/{package.name}/README.md) | {about} |")
    return "\n".join(rows)


def settings_table() -> str:
    """Return the settings of each section of RunConfig, then those of each project and extension, by heading.

    A heading makes a setting a result of the search, and an address that can be linked to.
    """
    core = kinds(CORE / "config/__init__.py")
    sections = [(f.name, core[ast.unparse(f.type)]) for f in core["RunConfig"].fields]
    parts = [f"## `{name}`\n\n{_settings([(name, kind)], core)}" for name, kind in sections]
    for package in PACKAGES:
        for path in sorted(package.glob("src/**/*.py")):
            own = kinds(path)
            for kind in (k for k in own.values() if "RunConfig" in k.bases):
                sections = [(f.name, own[name]) for f in kind.fields if (name := ast.unparse(f.type)) in own]
                parts.append(f"## Settings of {package.name} alone\n\n{_settings(sections, own)}")
    for package in EXTENSIONS:
        own = kinds(package / "src" / f"runner_{package.name}" / "__init__.py")
        if config := own.get("Config"):
            parts.append(f"## Settings of the extension {package.name}\n\n{_settings([(package.name, config)], own)}")
    return "\n\n".join(parts)


def _settings(sections: list[tuple[str, Kind]], own: dict[str, Kind]) -> str:
    """`own`: classes of the module, of which a field may be one: its fields stand in its place."""
    leaves = (leaf for section, kind in sections for leaf in _leaves(section, kind, own))
    return "\n\n".join(f"#### `{name}`\n\nDefault: {_default(f)}. {_text(f.text)}{_choices(f)}" for name, f in leaves)


def _leaves(section: str, kind: Kind, own: dict[str, Kind]) -> Iterator[tuple[str, Field]]:
    for f in kind.fields:
        inner = own.get(ast.unparse(f.type))
        if inner is None:
            yield f"{section}.{f.name}", f
            continue
        given = _given(f.default, inner)
        for i, leaf in enumerate(inner.fields):
            text = f"{f.text} {leaf.text}" if i == 0 else leaf.text
            default = given.get(leaf.name, leaf.default)
            yield f"{section}.{f.name}.{leaf.name}", leaf._replace(default=default, text=text)


def _given(default: ast.expr | None, kind: Kind) -> dict[str, ast.expr]:
    """Return the arguments that `field(default_factory=lambda: Kind(…))` gives, by field."""
    made = next((node for node in ast.walk(default) if isinstance(node, ast.Lambda)), None) if default else None
    if made is None or not isinstance(made.body, ast.Call):
        return {}
    by_place = zip((f.name for f in kind.fields), made.body.args, strict=False)
    return {**dict(by_place), **{word.arg: word.value for word in made.body.keywords if word.arg}}


def commands_table() -> str:
    """Each command of a project with its flags, those first that all of them have."""
    commands = _constant(CORE / "cli/__init__.py", "PROJECT_COMMANDS")
    there = kinds(CORE / "cli/options.py")
    parts = [f"### Flags of every command\n\n{_flags(there['Options'].fields)}"]
    for command, (_, about) in ast.literal_eval(commands).items():
        name = f"{command.title().replace('-', '')}Options"
        kind = there.get(name) or Kind(about.capitalize() + ".", ["RunOptions"], [])
        fields = _inherited(kind, there)
        words = " ".join(_word(f) for f in fields if "Positional" in ast.unparse(f.type))
        usage = f"runner PROJECT {command} {words}".strip()
        parts.append(f"### {command}\n\n```text\n{usage} [FLAGS]\n```\n\n{kind.text}\n\n{_flags(fields)}")
    return "\n\n".join(parts)


def _inherited(kind: Kind, there: dict[str, Kind]) -> list[Field]:
    """Return the fields of a kind, after those of its bases; those of every command (`Options`) are left out."""
    above = [f for base in kind.bases if base in there and base != "Options" for f in _inherited(there[base], there)]
    return [*above, *kind.fields]


def checks_table() -> str:
    """Return a table of the contract test's checks, in their order, with their docstrings."""
    rows = ["| test | what is tested |", "|---|---|"]
    checks = _constant(CORE / "testing/contract.py", "CHECKS")
    for module, name in (_name(check).split(".") for check in getattr(checks, "elts", ())):
        tree = ast.parse((CORE / f"testing/{module}.py").read_text(encoding="utf-8"))
        (function,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
        rows.append(f"| {name.replace('_', ' ')} | {_cell(ast.get_docstring(function) or '')} |")
    return "\n".join(rows)


def _constant(path: Path, name: str) -> ast.expr:
    """Return the value of a module's constant."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if _name(target) == name:
                return node.value
    raise LookupError(f"{path} has no {name}")


def _flags(fields: list[Field]) -> str:
    def shown(f: Field) -> str:
        return f"`{_word(f)}`" if "Positional" in ast.unparse(f.type) else f"`--{f.name.strip('_').replace('_', '-')}`"

    return _table("flag", ((shown(f), f) for f in fields))


def _word(field: Field) -> str:
    """Return the word that --help uses for a positional argument."""
    found = re.search(r"metavar='(.*?)'", ast.unparse(field.type))
    return found[1] if found else field.name.upper()


def _table(first: str, rows: Iterable[tuple[str, Field]]) -> str:
    head = f"| {first} | default | what it is |\n|---|---|---|\n"
    return head + "\n".join(f"| {name} | {_default(f)} | {_cell(f.text)}{_choices(f)} |" for name, f in rows)


def _default(field: Field) -> str:
    if field.default is None:
        return "needed"
    text = ast.unparse(field.default).replace("'", "")
    return {"None": "–", "()": "–", "True": "`true`", "False": "`false`"}.get(text, f"`{text}`")


def _choices(field: Field) -> str:
    found = re.search(r"Literal\[(.*?)\]", ast.unparse(field.type))
    choices = found[1].replace("'", "").split(", ") if found else []
    if choices:
        return f"<br>One of {', '.join(f'`{choice}`' for choice in choices)}."
    bounds = re.search(rf"({'|'.join(_BOUNDS)})\(([^()]*)\)", ast.unparse(field.type))
    return f"<br>{_BOUNDS[bounds[1]].format(*bounds[2].split(', '))}." if bounds else ""


_BOUNDS = {
    "AtLeast": "At least {}",
    "MoreThan": "More than {}",
    "Within": "From {} to {}",
    "Between": "Between {} and {}",
    "ShareBelow": "From 0 to below {}",
    "AboveUpTo": "Above {}, up to {}",
}
"""How a bound at a setting's field reads in the table of settings."""


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def kinds(path: Path) -> dict[str, Kind]:
    """Return the classes of a module, with the text below each field."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {c.name: Kind(ast.get_docstring(c) or "", [_name(b) for b in c.bases], list(_fields(c))) for c in classes}


def _fields(node: ast.ClassDef) -> Iterator[Field]:
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).startswith("ClassVar"):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            yield Field(_name(field.target), field.annotation, field.value, str(after.value.value) if said else "")


def _name(node: ast.expr) -> str:
    return ast.unparse(node)
