"""The report of a run as files in its folder: report.html, and its pictures as PNGs."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from .report_page import Section, render_page
from .run import BLUE, ORANGE, Curves, Reporter, Run, format_seconds, plot_buckets, plot_loss, plot_share, read_curves
from .samples import draw_history
from .session import Session

GREY = "#94a3b8"


def write_report(run: Run, session: Session, reporter: Reporter) -> Path:
    """Write the pictures and the page; returns the page."""
    curves = read_curves(run.metrics)
    pictures = {
        "loss": plot_loss(curves.losses, curves.validation),
        "samples": draw_history(run.samples),
        "time": plot_time(reporter),
        "buckets": plot_buckets(count_buckets(session)),
    }
    sections = []
    for name, picture in pictures.items():
        if picture is not None:
            picture.save(run.folder / f"{name}.png")
            sections.append(Section(name.capitalize(), picture))
    sections.append(Section("Settings", table=session.config.to_dict()))
    numbers = count_numbers(session, reporter, curves)
    page = render_page(run.name, f"Trained on {session.dataset.path.name}", numbers, sections)
    path = run.folder / "report.html"
    temporary = path.with_suffix(".part")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


def count_numbers(session: Session, reporter: Reporter, curves: Curves) -> dict[str, str]:
    """The numbers at the top of the page."""
    return {
        "steps": f"{session.step:,} of {session.steps:,}",
        "last loss": f"{curves.losses[-1][1]:.4f}" if curves.losses else "–",
        "held-out loss": f"{curves.validation[-1][1]:.4f}" if curves.validation else "–",
        "time": format_seconds(reporter.seconds()),
        "waiting for data": f"{reporter.data_wait():.2%}",
        "samples": f"{len(session.dataset):,}",
    }


def plot_time(reporter: Reporter) -> Image.Image:
    """Where the time went."""
    training = max(reporter.seconds() - reporter.paused, 0.0)
    waited = min(reporter.waited, training)
    return plot_share(
        "Where the time went",
        {
            "steps": (training - waited, BLUE),
            "waiting for data": (waited, ORANGE),
            "saving, validation, samples": (reporter.paused, GREY),
        },
    )


def count_buckets(session: Session) -> dict[str, int]:
    """Samples by the size of their latents."""
    return {"×".join(map(str, bucket.shape)): len(rows) for bucket, rows in session.dataset.buckets().items()}
