"""A grid of test images: prompts and seeds in rows; LoRAs, steps and strengths in columns."""

from .columns import Column, choose_exports, describe_missing, make_columns
from .kept_pictures import GRID_FOLDER, KeptPicture, KeptPictures, to_image
from .painting import Painter, Picture, Row, check_loras, make_rows, paint, row_labels
from .settings import GRID_SETTINGS, GridSettings
from .sheet import draw_sheet

__all__ = [
    "GRID_FOLDER",
    "GRID_SETTINGS",
    "Column",
    "GridSettings",
    "KeptPicture",
    "KeptPictures",
    "Painter",
    "Picture",
    "Row",
    "check_loras",
    "choose_exports",
    "describe_missing",
    "draw_sheet",
    "make_columns",
    "make_rows",
    "paint",
    "row_labels",
    "to_image",
]
