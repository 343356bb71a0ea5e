"""How far a run is, in words: done, running, about how long to go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a pool is. `running`: key and seconds so far, the longest first. `left_s`: about how long until the end of all.

    `guessed`: not all of that is on records.
    """

    done: int
    total: int
    running: tuple[tuple[str, float], ...]
    left_s: float
    guessed: bool


def told(progress: Progress, columns: int) -> str:
    """One line of at most `columns` characters. What doesn't fit of the running cells is counted."""
    about = "a guess" if progress.guessed else "from records"
    left = f", about {span(progress.left_s)} to go ({about})" if progress.done < progress.total else ""
    head = f"cells: {progress.done} of {progress.total} done{left}"
    shown: list[str] = []
    for at, (key, seconds) in enumerate(progress.running):
        more = len(progress.running) - at - 1
        tried = ", ".join([*shown, f"{key} {span(seconds)}"])
        if len(f"{head}; running {tried}" + (f" and {more} more" if more else "")) > columns:
            break
        shown.append(f"{key} {span(seconds)}")
    rest = len(progress.running) - len(shown)
    names = ", ".join(shown) + (f" and {rest} more" if rest and shown else "")
    line = f"{head}; running {names or rest}" if progress.running else head
    return line if len(line) <= columns else line[: max(0, columns - 3)] + "..."[: max(0, columns)]


def span(seconds: float) -> str:
    """42s, 3m20s, 2h05m: two units, since nobody plans by more."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
