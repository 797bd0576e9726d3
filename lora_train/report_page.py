"""The report of a run: report.html with embedded images, and the same images as PNG files."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ..dataset_cache import replace_file, samples_by_bucket
from .run import (
    BLUE,
    ORANGE,
    Curves,
    Export,
    Reporter,
    Run,
    format_seconds,
    list_exports,
    plot_buckets,
    plot_curve,
    plot_loss,
    plot_share,
    read_curves,
)
from .samples import draw_history
from .session import Session

GRAY = "#94a3b8"

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.55 system-ui, sans-serif; color: #1f2937; background: #f6f7f9; margin: 0; }
main { max-width: 1000px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0 0 12px; }
p { color: #64748b; margin: 0 0 20px; }
section { background: #fff; border: 1px solid #e5e9f0; border-radius: 10px; padding: 20px; margin: 0 0 18px; }
section img { max-width: 100%; height: auto; display: block; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 0 0 18px; }
.numbers div { background: #fff; border: 1px solid #e5e9f0; border-radius: 10px; padding: 14px 16px; }
.numbers b { display: block; font-size: 20px; font-weight: 600; } .numbers span { color: #64748b; font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
td { padding: 4px 12px 4px 0; border-top: 1px solid #eef1f5; vertical-align: top; } td:first-child { color: #64748b; }
"""


@dataclass(frozen=True)
class Section:
    """A heading with an image, a text, a table, or several of them."""

    title: str
    image: Image.Image | None = None
    words: str = ""
    table: Mapping[str, object] | None = None


def render_page(title: str, subtitle: str, numbers: Mapping[str, str], sections: Sequence[Section]) -> str:
    """The page as HTML. All text is escaped: captions are untrusted."""
    cards = "".join(f"<div><b>{_safe(value)}</b><span>{_safe(name)}</span></div>" for name, value in numbers.items())
    body = "".join(_section(section) for section in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_safe(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><main><h1>{_safe(title)}</h1><p>{_safe(subtitle)}</p><div class="numbers">{cards}</div>{body}'
        "</main></body></html>\n"
    )


def write_report(run: Run, session: Session, reporter: Reporter, captions: Sequence[str] = ()) -> Path:
    """Write the images and the page; returns the page's path. `captions` are those of the sample images."""
    curves = read_curves(run.metrics)
    images = {
        "loss": plot_loss(curves.losses, curves.validation),
        "learning rate": plot_curve("Learning rate", curves.rates),
        "gradient norm": plot_curve("Gradient norm before clipping", curves.norms),
        "samples": draw_history(run.samples, captions),
        "time": plot_time(reporter),
        "buckets": plot_buckets(count_buckets(session)),
    }
    sections = []
    for name, image in images.items():
        if image is not None:
            data = io.BytesIO()
            image.save(data, "PNG")
            replace_file(run.folder / f"{name.replace(' ', '_')}.png", data.getvalue())
            sections.append(Section(name.capitalize(), image))
    exports = {one.path.name: _measured(one) for one in list_exports(run.folder)}
    sections.append(Section("LoRA files", table=exports))
    if (traffic := session.dataset.traffic) is not None:
        sections.append(Section("Remote dataset", words=f"{traffic}."))
    sections.append(Section("Settings", table=session.config.to_dict()))
    numbers = count_numbers(session, reporter, curves)
    page = render_page(run.name, f"Trained on {session.dataset.path.name}", numbers, sections)
    replace_file(run.report, page.encode())
    return run.report


def count_numbers(session: Session, reporter: Reporter, curves: Curves) -> dict[str, str]:
    """The figures at the top of the page."""
    return {
        "steps": f"{session.step:,} of {session.steps:,}",
        "last loss": f"{curves.losses[-1][1]:.4f}" if curves.losses else "–",
        "validation loss": f"{curves.validation[-1][1]:.4f}" if curves.validation else "–",
        f"time{since(reporter)}": format_seconds(reporter.seconds()),
        f"of training waiting for data{since(reporter)}": f"{reporter.data_wait():.1%}",
        "samples": f"{len(session.dataset):,}",
    }


def _measured(export: Export) -> str:
    """The step of a LoRA file and its losses."""
    losses = ("loss", export.loss), ("validation loss", export.validation)
    parts = [f"{name} {value:.4f}" for name, value in losses if value is not None]
    return ", ".join([f"step {export.step:,}", *parts, *(["unfinished"] if export.partial else [])])


def since(reporter: Reporter) -> str:
    """From when times count, if not from the start: those before a resume are not stored."""
    return f" since step {reporter.first:,}" if reporter.first else ""


def plot_time(reporter: Reporter) -> Image.Image:
    """The time spent on steps, waiting and pauses."""
    training = max(reporter.seconds() - reporter.paused, 0.0)
    waited = min(reporter.waited, training)
    return plot_share(
        f"Where the time went{since(reporter)}",
        {
            "steps": (training - waited, BLUE),
            "waiting for data": (waited, ORANGE),
            "saving, validation, sample images": (reporter.paused, GRAY),
        },
    )


def count_buckets(session: Session) -> dict[str, int]:
    """Samples by bucket, in pixels if known."""
    return {label: len(rows) for label, rows in samples_by_bucket(session.dataset).items()}


def _section(section: Section) -> str:
    parts = [f"<h2>{_safe(section.title)}</h2>"]
    if section.words:
        parts.append(f"<p>{_safe(section.words)}</p>")
    if section.image is not None:
        parts.append(f'<img alt="{_safe(section.title)}" src="data:image/png;base64,{_encode(section.image)}">')
    if section.table:
        rows = (
            f"<tr><td>{_safe(name)}</td><td>{_safe(_written(value))}</td></tr>" for name, value in section.table.items()
        )
        parts.append(f"<table>{''.join(rows)}</table>")
    return f"<section>{''.join(parts)}</section>"


def _encode(image: Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return base64.b64encode(data.getvalue()).decode()


def _written(value: object) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_written(item)}" for name, item in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_written, value)) or "–"
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None or value == "" else str(value)


def _safe(value: object) -> str:
    return html.escape(str(value))
