"""The node LoRA Test Grid: what each LoRA does with the same prompts and seeds, at several strengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import comfy.samplers
import torch
from comfy_api.latest import io, ui

from ...lora_train import (
    GRID_FOLDER,
    GRID_SETTINGS,
    Column,
    GridSettings,
    KeptPictures,
    TrainError,
    check_loras,
    check_run_name,
    choose_exports,
    describe_missing,
    draw_sheet,
    make_columns,
    make_rows,
    paint,
    row_labels,
    to_image,
)
from ...setting import parse_setting
from .. import sockets
from ..host.app import NodeProgress, find_lora, lora_folder, lora_stamp, runs_folder, send_event
from ..library import check_texts, contained, problem_of, prompt_names, split_prompts
from ..setting_inputs import setting_input

EVENT = "streamcache.grid"
LISTS = ("strengths", "seeds")  # settings that are typed as text


class StreamCacheLoraGrid(io.ComfyNode):
    """Draws the pictures that Load LoRA, CLIP Text Encode, KSampler and VAE Decode would make, in one grid."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheLoraGrid",
            display_name="LoRA Test Grid",
            category=sockets.CATEGORY,
            description="Compares LoRAs: prompts and seeds in rows; LoRAs, the steps of a run and strengths in "
            "columns. The pictures of a run are kept with it, and none is made twice.",
            search_aliases=["xy plot", "lora comparison", "compare loras", "test lora", "epochs", "strength"],
            is_input_list=True,
            is_output_node=True,
            inputs=_inputs(),
            outputs=[
                io.Image.Output("grid", display_name="grid", tooltip="All pictures as one image, with labels."),
                io.Image.Output("images", display_name="images", tooltip="The pictures, row by row."),
            ],
        )

    @classmethod
    def validate_inputs(cls, run: Any = "") -> bool | str:
        return problem_of(sockets.first(run), _check_run)

    @classmethod
    def fingerprint_inputs(cls, loras: Any = "", run: Any = "", **others: Any) -> Any:
        """Changes with the LoRA files, and if the run has new ones."""
        try:
            columns = _columns(str(sockets.first(loras) or ""), str(sockets.first(run) or ""), "")
        except ValueError as error:  # the base of the pack's own errors; the node raises it when it runs
            return str(error)
        return [[str(column.file), lora_stamp(column.file or "")] for column in columns]

    @classmethod
    def execute(
        cls,
        model: Sequence[Any],
        vae: Sequence[Any],
        prompts: Sequence[Any],
        negative: Sequence[Any] = ("",),
        loras: Sequence[str] = ("",),
        run: Sequence[str] = ("",),
        exports: Sequence[str] = ("",),
        clip: Sequence[Any] = (),
        **settings: Any,
    ) -> io.NodeOutput:
        from ..host.model import HostPainter  # on use: ComfyUI starts faster

        common, texts, without = _read_settings(sockets.scalars(settings)), split_prompts(prompts), negative[0]
        check_texts([*texts, without], sockets.first(clip))
        columns = make_columns(_columns(loras[0], run[0], exports[0]), common.strengths, common.base)
        rows = make_rows(prompt_names(texts), common.seeds, without if isinstance(without, str) else "")
        painter = HostPainter(model[0], vae[0], sockets.first(clip), texts, without, common)
        remarks = [*check_loras(painter, columns), *_missing(run[0], exports[0])]
        watch = _Watch(run[0])
        pictures = paint(painter, columns, rows, common, _kept(run[0]), watch)
        sheet = draw_sheet([[to_image(each.pixels) for each in line] for line in pictures],
                           [column.label for column in columns], row_labels(rows), run[0])  # fmt: skip
        made = sum(picture.made for line in pictures for picture in line)
        words = f"{made:,} of {len(columns) * len(rows):,} pictures were made; the others were kept from before"
        watch.node.show("\n".join([words, *remarks]))
        grid = sockets.image(sheet)
        images = torch.cat([picture.pixels for line in pictures for picture in line])
        shown = ui.PreviewImage(grid, cls=cls).as_dict()
        return io.NodeOutput(grid, images, ui={**shown, "text": ["\n".join([words, *remarks])]})


NODES = [StreamCacheLoraGrid]


class _Watch:
    """Progress on the node. Every picture that is kept is announced to the Training tab."""

    def __init__(self, run: str) -> None:
        self.run, self.node = run, NodeProgress()

    def __call__(self, done: int, total: int, text: str) -> None:
        self.node.check()
        if self.run and done:
            send_event(EVENT, {"run": self.run, "done": done, "total": total})
        self.node.show(f"Picture {done + 1:,} of {total:,}: {text}" if done < total else "")


def _inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The model that the LoRAs are applied to."),
        io.Vae.Input("vae", tooltip="Decodes the pictures."),
        _text("prompts", "Prompts as text, one per line, or conditionings. One row each.", multiline=True, words=True),
        _text("negative", "Negative prompt as text or conditioning.", multiline=True, words=True, optional=True),
        _text("loras", "LoRAs by their names in Load LoRA, one per line. One column each.", multiline=True),
        _text("run", "A run of Train LoRA by name: its LoRAs are columns, and the pictures are kept with it."),
        _text("exports", "Which LoRAs of the run: all, last, or steps, such as 500, 1000.", default="all"),
        *(_setting(name) for name in GRID_SETTINGS),
        io.Clip.Input("clip", optional=True, tooltip="The text encoder for prompts that are text."),
    ]


def _text(name: str, tooltip: str, words: bool = False, optional: bool = True, **options: Any) -> io.Input:
    """A text; with `words`, a conditioning can be connected instead."""
    options = {"default": "", **options}
    if words:
        plain = io.String.Input(name, tooltip=tooltip, **options)
        return io.MultiType.Input(plain, [io.Conditioning], optional=optional and name != "prompts")
    return io.String.Input(name, optional=optional, tooltip=tooltip, **options)


def _setting(name: str) -> io.Input:
    setting = GRID_SETTINGS[name]
    tooltip = f"{setting.limits.about}."
    if name in LISTS:
        default = ", ".join(f"{number:g}" for number in setting.default)
        return io.String.Input(name, optional=True, default=default, tooltip=tooltip)
    choices = {"sampler": comfy.samplers.KSampler.SAMPLERS, "scheduler": comfy.samplers.KSampler.SCHEDULERS}
    if name in choices:
        return io.Combo.Input(
            name, optional=True, options=list(choices[name]), default=setting.default, tooltip=tooltip
        )
    return setting_input(setting, optional=True)


def _read_settings(values: dict[str, Any]) -> GridSettings:
    found = {name: value for name, value in values.items() if name in GRID_SETTINGS and value is not None}
    return GridSettings(
        **{name: parse_setting(GRID_SETTINGS[name], each) if name in LISTS else each for name, each in found.items()}
    )


def _columns(loras: str, run: str, exports: str) -> list[Column]:
    """The LoRAs of the run, then those that are named."""
    # run.json may come from elsewhere: a file is looked for where runs put theirs.
    found = choose_exports(_run_folder(run), exports, lora_folder()) if run else []
    names = [line.strip() for line in loras.splitlines() if line.strip()]
    return [*found, *(Column(Path(find_lora(name, "loras")), 1.0, name.rpartition(".")[0] or name) for name in names)]


def _missing(run: str, exports: str) -> list[str]:
    return describe_missing(_run_folder(run), exports, lora_folder()) if run else []


def _kept(run: str) -> KeptPictures | None:
    return KeptPictures(_run_folder(run) / GRID_FOLDER) if run else None


def _run_folder(run: str) -> Path:
    _check_run(run)
    return runs_folder() / run


def _check_run(run: str) -> None:
    """Only a run that is there."""
    if run:
        check_run_name(run)
        folder = contained(runs_folder(), [run], run)
        if not (folder / "run.json").is_file():
            raise TrainError(
                f'run = "{run}": there is no such run; give a name from the Training tab, or leave it empty'
            )
