"""A documentation tree on disk, in which links of a page are looked up."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from harness.docs_page import Page, read_page

_PAGES = (".md", ".rst")


class DocsTree:
    """`root`: the tree's folder; `page`: the file that is checked. A page that lies outside may link to its own surroundings; as a copy
    it is looked up as if it lay where the page of the same name does, else each link by the end of its path."""

    def __init__(self, root: Path, page: Path) -> None:
        self._root = root.resolve()
        here = page.resolve()
        inside = here.is_relative_to(self._root)
        self._outside = None if inside else here.parent
        self._folder: Path | None = here.parent if inside else None
        if not inside and len(same := sorted(self._root.rglob(page.name))) == 1:
            self._folder = same[0].parent

    def find(self, target: str) -> str | None:
        """The path, from the tree's root where it lies in there, of what a relative link leads to."""
        if target.startswith("/"):
            found = _existing(self._root / target.lstrip("/"))
        elif self._folder is not None:
            found = _existing(self._folder / target)
        else:
            tail = target.lstrip("./")
            ends = sorted(path for path in self._root.rglob(Path(tail).name or "*") if path.as_posix().endswith(f"/{tail}"))
            found = ends[0] if ends else None
        if found is None and self._outside is not None:
            found = _existing(self._outside / target)
        if found is None:
            return None
        resolved = found.resolve()
        return str(resolved.relative_to(self._root)) if resolved.is_relative_to(self._root) else str(resolved)

    def page(self, found: str) -> Page | None:
        path = self._root / found
        return _page(path) if path.suffix in _PAGES and path.is_file() else None


def _existing(path: Path) -> Path | None:
    """The file or folder; for the address of a rendered page, its source."""
    forms = [path, *(path.with_suffix(suffix) for suffix in _PAGES if path.suffix == ".html")]
    try:
        return next((form for form in forms if form.exists()), None)
    except OSError:  # a name that no file system takes
        return None


@lru_cache(maxsize=256)
def _page(path: Path) -> Page | None:
    try:
        return read_page(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
