"""Hooks of mkdocs: adds the pages of the repository's root, and adapts links to files outside docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(
    r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+|(?:src|examples|tests)/[^)\s]*|LICENSE|README\.md)(#[^)]*)?\)"
)
_FILE = re.compile(r"^```python ([\w.]+)$", re.MULTILINE)  # a block that is a file
_EXCLUDED = (".py", ".json")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and leave out the scripts and data of docs/."""
    for file in list(files):
        if file.src_uri.endswith(_EXCLUDED):
            files.remove(file)
    for name in PAGES:
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep links to pages of the root, replace those to other files by their paths, and give blocks that are
    files their name as a title."""
    depth = page.file.src_uri.count("/")

    def replace(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        name = re.sub(r"^(\.\./)+", "", target)
        if name in PAGES:
            return f"[{words}]({'../' * depth}{name}{anchor})"
        return words if words == name or f"`{name}`" == words else f"{words} (`{name}`)"

    return _FILE.sub(r'```python title="\1"', _LINK.sub(replace, markdown))
