"""What a person has chosen to see, and what each key changes of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ddl_cli.view.learners import TABLE

Page = Literal["overview", "learners", "rounds", "events", "learner", "help"]

_PAGES: Final[dict[str, Page]] = {
    "1": "overview",
    "2": "learners",
    "3": "rounds",
    "4": "events",
    "?": "help",
    "h": "help",
}

SCREENFUL: Final = 10
"""Lines that page-up and page-down move."""

KEYS: Final = (
    ("1", "overview"),
    ("2", "learners"),
    ("3", "open rounds, and where the time of the last ones went"),
    ("4", "troubles and events"),
    ("up, down, j, k", "choose a learner; scroll events"),
    ("Enter", "all about the chosen learner"),
    ("Esc", "back; forget what was to be found"),
    ("/", "find: part of an id, host, device, state, or event"),
    ("s, S", "sort learners by the next column; the other way round"),
    ("p, space", "let the picture stand still, and go on"),
    ("q", "quit"),
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What to show.

    Attributes:
        back: the page that Esc leads to.
        sort: column by which learners are sorted; empty for those present first.
        typing: whether keys go into the filter.
        selected: the chosen learner's id; empty before one was chosen.
        top: newest events that are scrolled away.
        paused: whether the picture stands still.
        over: whether to end.
    """

    page: Page = "overview"
    back: Page = "overview"
    sort: str = ""
    descending: bool = False
    filter: str = ""
    typing: bool = False
    selected: str = ""
    top: int = 0
    paused: bool = False
    over: bool = False


def press(look: Look, key: str, ids: Sequence[str]) -> Look:
    """The look after `key`; `ids` are the learners on the page, in their order.

    Keys are single characters, or "up", "down", "pageup", "pagedown", "home", "end", "enter", "esc",
    "backspace". One that means nothing changes nothing.
    """
    if look.typing:
        return _type(look, key)
    if key in _PAGES and _PAGES[key] != look.page:
        return replace(look, page=_PAGES[key], back=look.page, top=0)
    match key:
        case "q":
            return replace(look, over=True)
        case "p" | " ":
            return replace(look, paused=not look.paused)
        case "/":
            return replace(look, typing=True)
        case "s":
            titles = ["", *TABLE.sortable]
            sort = titles[(titles.index(look.sort) + 1) % len(titles)]
            return replace(look, sort=sort, descending=sort != TABLE.names)
        case "S":
            return replace(look, descending=not look.descending)
        case "enter":
            chosen = look.selected if look.selected in ids else next(iter(ids), "")
            if look.page in ("overview", "learners") and chosen:
                return replace(look, page="learner", back=look.page, selected=chosen, top=0)
        case "esc":
            return _back(look)
        case _:
            return _move(look, key, ids)
    return look


def _type(look: Look, key: str) -> Look:
    if key == "enter":
        return replace(look, typing=False)
    if key == "esc":
        return replace(look, typing=False, filter="")
    if key == "backspace":
        return replace(look, filter=look.filter[:-1])
    return replace(look, filter=look.filter + key, top=0) if len(key) == 1 else look


def _back(look: Look) -> Look:
    if look.page in ("learner", "help"):
        page = look.back if look.back not in ("learner", "help") else "overview"
        return replace(look, page=page, top=0)
    if look.filter or look.selected:
        return replace(look, filter="", selected="")
    return replace(look, page="overview", top=0)


def _move(look: Look, key: str, ids: Sequence[str]) -> Look:
    steps = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": SCREENFUL, "pageup": -SCREENFUL}
    step = steps.get(key)
    if look.page in ("overview", "learners"):
        if not ids or (step is None and key not in ("home", "end")):
            return look
        at = ids.index(look.selected) if look.selected in ids else -1
        if step is None:
            to = 0 if key == "home" else len(ids) - 1
        else:
            to = min(len(ids) - 1, max(0, at + step))
        return replace(look, selected=ids[to])
    if step is not None:
        return replace(look, top=max(0, look.top - step))
    return replace(look, top=0) if key == "end" else look
