"""The report of a run as files: loss.png, samples.png and report.html in its folder."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from .canvas import BLUE, ORANGE
from .metrics import read_curves
from .plots import plot_buckets, plot_loss, plot_share
from .report import Reporter, format_seconds
from .report_page import Section, render_page
from .run import Run
from .samples import draw_history
from .session import Session

GREY = "#94a3b8"


def write_report(run: Run, session: Session, reporter: Reporter) -> Path:
    """Write the pictures and the page; returns the page."""
    curves = read_curves(run.metrics)
    loss = plot_loss(curves.losses, curves.validation)
    loss.save(run.folder / "loss.png")
    sections = [Section("Loss", loss)]
    history = draw_history(run.samples)
    if history is not None:
        history.save(run.folder / "samples.png")
        sections.append(Section("Samples", history))
    sections += [Section("Time", plot_time(reporter)), Section("Buckets", plot_buckets(count_buckets(session)))]
    sections.append(Section("Settings", table=session.config.to_dict()))
    last = f"{curves.losses[-1][1]:.4f}" if curves.losses else "–"
    numbers = {
        "steps": f"{session.step:,} of {session.steps:,}",
        "last loss": last,
        "held-out loss": f"{curves.validation[-1][1]:.4f}" if curves.validation else "–",
        "time": format_seconds(reporter.seconds()),
        "waiting for data": f"{reporter.data_wait():.2%}",
        "samples": f"{len(session.dataset):,}",
    }
    page = render_page(run.name, f"Trained on {session.dataset.path.name}", numbers, sections)
    path = run.folder / "report.html"
    temporary = path.with_suffix(".part")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


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
