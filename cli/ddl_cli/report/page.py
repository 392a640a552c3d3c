"""One HTML page of a run: self-contained, without scripts, readable offline and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from ddl.config import all_keys, get
from ddl.core.snapshot import outcomes
from ddl.names import counted
from ddl.protocol.records import FATES
from ddl_cli.report.canvas import Plot
from ddl_cli.report.plots import MEANINGS
from ddl_cli.report.story import Part, Story
from ddl_cli.units import short_number, short_time

MARKS_MAX = 200
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
h1 { margin-bottom: 0 } h2 { margin-top: 2.2rem }
figure { margin: 0 } figure svg { width: 100%; height: auto }
figcaption, .quiet { color: #555 }
table { border-collapse: collapse; width: 100% } .wide { overflow-x: auto }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #ddd;
         vertical-align: top }
th { white-space: nowrap }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem } dd { margin: 0 }
"""


def render(story: Story, plots: Sequence[Plot], *, written_at: float) -> str:
    """The page. `written_at`: seconds since the epoch."""
    run = story.run
    title = f"{run.name}: {_progress(story)}"
    body = [
        f"<h1>{escape(run.name)}</h1>",
        f'<p class="quiet">lineage {escape(run.lineage[:8])}, made {_date(run.created_at)}, '
        f"report of {_date(written_at)}</p>",
        _facts(story),
        *(figure(plot) for plot in plots),
        _learners(story),
        _marks(story),
        _settings(story),
    ]
    return document(title, body)


def document(title: str, body: Iterable[str]) -> str:
    """A whole page around the HTML of its parts."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _progress(story: Story) -> str:
    version = story.steps[-1].version if story.steps else 0
    return f"version {version}, {short_number(story.progress)} tokens"


def _facts(story: Story) -> str:
    rows = [
        ("state", story.state + (f": {story.why}" if story.why else "")),
        ("reached", f"{_progress(story)}, {counted(story.records, 'record')} in the log"),
        ("time", short_time(story.end_s)),
        (
            "model",
            f"{short_number(story.run.layout.num_parameters)} parameters in "
            f"{counted(story.run.layout.num_fragments, 'fragment')}",
        ),
        (
            "work",
            ", ".join(
                f"{short_number(num)} {word}"
                for word, num in outcomes(story.tokens, story.progress).items()
                if round(num) or word == "merged"
            ),
        ),
    ]
    if story.losses:
        first, last = story.losses[0][1], story.losses[-1][1]
        rows.append(("training loss", f"{first:.4f} at first, {last:.4f} at last"))
    return "<dl>" + "".join(f"<dt>{a}</dt><dd>{escape(b)}</dd>" for a, b in rows) + "</dl>"


def figure(plot: Plot) -> str:
    """A plot below its title, with what it says."""
    picture = plot.svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.says)}"', 1)
    return (
        f"<h2>{escape(plot.title)}</h2><figure>{picture}"
        f"<figcaption>{escape(plot.says)}</figcaption></figure>"
    )


def _learners(story: Story) -> str:
    parts = sorted(story.parts.items(), key=lambda row: -row[1].tokens["merged"])
    merged = story.tokens["merged"] or 1.0
    rows = [
        (
            name,
            str(part.lives),
            str(part.contributions),
            f"{part.tokens['merged'] / merged:.1%}",
            *(short_number(part.tokens[fate]) for fate in FATES),
            f"{short_time(part.first_s)} to {short_time(part.last_s)}",
            _reasons(part),
        )
        for name, part in parts
    ]
    head = (
        "learner",
        "lives",
        "handed in",
        "share",
        *(f.replace("_", " ") for f in FATES),
        "settled from",
        "why not merged",
    )
    return "<h2>Learners</h2>" + table(head, rows, numbers=range(1, 4 + len(FATES)))


def _reasons(part: Part) -> str:
    worst = sorted(part.reasons.items(), key=lambda row: -row[1])[:3]
    return "; ".join(f"{num} x {reason}" for reason, num in worst)


def _marks(story: Story) -> str:
    if not story.marks:
        return ""
    shown = story.marks[-MARKS_MAX:]
    older = len(story.marks) - len(shown)
    note = f'<p class="quiet">{older} older ones are left out.</p>' if older else ""
    rows = [(short_time(mark.at_s), MEANINGS[mark.kind], mark.text) for mark in shown]
    return (
        "<h2>What happened</h2>"
        + note
        + table(("at", "what", "of whom, and why"), rows, numbers=())
    )


def _settings(story: Story) -> str:
    """What was changed during the run, and below that all there are, at its beginning and its end."""
    changes = [
        (
            f"{short_time(change.at_s)}, version {change.version}",
            change.key,
            f"{change.before} to {change.after}",
            change.by,
        )
        for change in story.changes
    ]
    rows = [
        (key, *(str(get(settings, key)) for settings in (story.run.settings, story.settings)))
        for key in all_keys()
        if not key.startswith(("redis.", "store."))
    ]
    return (
        "<h2>Settings</h2>"
        + (table(("changed at", "setting", "from", "by"), changes, numbers=()) if changes else "")
        + "<details><summary>show all</summary>"
        + table(("setting", "at the beginning", "at the end"), rows, numbers=())
        + "</details>"
    )


def table(head: Iterable[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int]) -> str:
    """A table; `numbers`: columns to be set right."""
    right = set(numbers)

    def line(cells: Iterable[str], tag: str) -> str:
        marked = (
            f"<{tag}{' class=number' if i in right else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>{line(head, "th")}{body}</table></div>'


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
