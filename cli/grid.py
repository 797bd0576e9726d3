"""`streamcache grid`: test images of LoRAs and of a run's exports, as one labelled image and as single files."""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..lora_train import (
    GRID_FOLDER,
    GRID_SETTINGS,
    Column,
    GridSettings,
    KeptPictures,
    Painter,
    Picture,
    Row,
    TrainError,
    check_loras,
    choose_exports,
    describe_missing,
    draw_sheet,
    make_columns,
    make_rows,
    open_run_file,
    paint,
    row_labels,
    to_image,
)
from ..reference import ReferenceDenoiser, ReferencePainter, load_model
from ..setting import parse_setting
from .host import add_host_options, hand_over, require_models
from .output import Progress, show
from .parser import Parser, UsageError, flag_of, setting_help, usage_errors, value_name
from .prompts import add_prompt_flags, check_prompts

_SETTING = "setting_"
LISTED = "grid.json"  # in the folder of single pictures: their names
_PICTURE = re.compile(r"\d{2,}-\d{2,}-[\w.-]{0,100}\.png")
_HOST_ONLY = ("cfg", "sampler", "scheduler")


@dataclass(frozen=True)
class Grid:
    """What is drawn."""

    columns: list[Column]
    rows: list[Row]
    settings: GridSettings


def add_grid_flags(parser: Parser) -> None:
    parser.set_defaults(run=run)
    parser.usage = "%(prog)s --run FOLDER --model NAME --prompt TEXT --out FILE.png [flags]"
    parser.allow_abbrev = False
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="Image to write (.png)")
    text = "Folder of a run: its LoRAs are columns, and the pictures are kept with it; none is made twice"
    parser.add_argument("--run", dest="run_folder", type=Path, metavar="FOLDER", help=text)
    text = "Which LoRAs of the run: all, last, or steps, such as 500,1000 [%(default)s]"
    parser.add_argument("--exports", default="all", metavar="STEPS", help=text)
    text = "A LoRA file as a column; repeat it for several"
    parser.add_argument("--lora", action="append", default=[], type=Path, metavar="FILE", help=text)
    models = add_host_options(parser)
    text = "Name of a diffusion model or checkpoint in ComfyUI, or with --reference the weights of the reference model"
    models.add_argument("--model", required=True, metavar="NAME", help=text)
    models.add_argument("--vae", metavar="NAME", help="VAE of ComfyUI, by its name in Load VAE")
    add_prompt_flags(models, "of the pictures")
    group = parser.add_argument_group("picture settings")
    for name, setting in GRID_SETTINGS.items():
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.type is bool else {}
        group.add_argument(
            flag_of(name), dest=_SETTING + name, metavar=value_name(setting), help=setting_help(setting), **switch
        )


def run(args: argparse.Namespace) -> int:
    _check_models(args)
    if args.out.suffix.lower() != ".png" or args.out.is_dir():
        raise UsageError(f"--out {args.out}: expected a file name that ends in .png")
    with usage_errors():
        settings = _read_settings(args)
    grid = Grid(_columns(args, settings), make_rows(args.prompt, settings.seeds, args.negative_prompt or ""), settings)
    handed_over = hand_over(args)
    if handed_over is not None:
        return handed_over
    painter = _open_painter(args, settings)
    lost = describe_missing(args.run_folder, args.exports) if args.run_folder else []
    remarks = [*lost, *check_loras(painter, grid.columns)]
    kept = KeptPictures(args.run_folder / GRID_FOLDER) if args.run_folder else None
    with Progress(args, "Drawing", "pictures") as bar:
        pictures = paint(painter, grid.columns, grid.rows, settings, kept, bar)
    files = _write(args.out, grid, pictures, args.run_folder.name if args.run_folder else "")
    made = sum(picture.made for line in pictures for picture in line)
    found = {"grid": str(args.out), "files": [str(file) for file in files], "made": made, "remarks": remarks}
    kept_words = f", {len(files) - made:,} of them kept from before" if kept is not None else ""
    show(args, found, [*remarks, f"Drew {len(files):,} pictures{kept_words}: {args.out}, {files[0].parent}"])
    return 0


def _check_models(args: argparse.Namespace) -> None:
    if args.reference and args.vae:
        raise UsageError("--vae: needs --comfyui FOLDER")
    for name in _HOST_ONLY:
        if args.reference and getattr(args, _SETTING + name) is not None:
            raise UsageError(
                f"{flag_of(name)}: needs --comfyui FOLDER; the reference model has one sampler, and no CFG"
            )
    require_models(args)
    check_prompts(args)
    if not args.prompt:
        raise UsageError("--prompt: is missing; expected at least one text")
    if args.comfyui and not args.vae:
        raise UsageError("--vae: is missing; name a VAE of ComfyUI, as in Load VAE")
    if args.run_folder is None and not args.lora:
        raise UsageError("no LoRA is given; add --run FOLDER or --lora FILE")


def _read_settings(args: argparse.Namespace) -> GridSettings:
    given = {name: getattr(args, _SETTING + name) for name in GRID_SETTINGS}
    return GridSettings(
        **{name: parse_setting(GRID_SETTINGS[name], text) for name, text in given.items() if text is not None}
    )


def _columns(args: argparse.Namespace, settings: GridSettings) -> list[Column]:
    """The LoRAs of the run, then those that are named."""
    folder, found = args.run_folder, []
    if folder is not None:
        folder = args.run_folder = Path(folder)
        if open_run_file(folder / "run.json") is None:
            raise TrainError(f"--run {folder}: not the folder of a run; expected one with a run.json")
        found = choose_exports(folder, args.exports)
    return make_columns(
        [*found, *(Column(file, 1.0, file.stem) for file in args.lora)], settings.strengths, settings.base
    )


def _open_painter(args: argparse.Namespace, settings: GridSettings) -> Painter:
    if not args.comfyui:
        return ReferencePainter(ReferenceDenoiser(load_model(args.model)), settings)
    # Importable only inside ComfyUI.
    from ..nodes.host.encoders import open_clip, open_model, open_vae
    from ..nodes.host.model import HostPainter

    clip, vae = open_clip(args.clip, args.clip_type), open_vae(args.vae)  # their names are checked, nothing is loaded
    negative, model = args.negative_prompt or "", open_model(args.model)
    vae.pin()  # or it would be loaded again for each picture
    return HostPainter(model, vae, clip, args.prompt, negative, settings)


def _write(out: Path, grid: Grid, pictures: list[list[Picture]], title: str) -> list[Path]:
    """The labelled image, and a folder beside it with the single pictures, by row and column."""
    folder = out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    _remove_former(folder)
    images = [[to_image(picture.pixels) for picture in line] for line in pictures]
    files = []
    for row, line in enumerate(images, start=1):
        for place, (column, image) in enumerate(zip(grid.columns, line), start=1):
            name = re.sub(r"[^\w.-]+", "_", column.label.replace("×", "x")).strip("_")[:100]
            files.append(folder / f"{row:02}-{place:02}-{name}.png")
            image.save(files[-1])
    (folder / LISTED).write_text(json.dumps([file.name for file in files]), encoding="utf-8")
    draw_sheet(images, [column.label for column in grid.columns], row_labels(grid.rows), title).save(out)
    return files


def _remove_former(folder: Path) -> None:
    """Remove the pictures that an earlier grid with the same --out left there, and nothing else."""
    try:
        names = json.loads((folder / LISTED).read_bytes())
    except (OSError, ValueError):
        return
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and _PICTURE.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
