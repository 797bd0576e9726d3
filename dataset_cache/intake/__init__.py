"""Images that users add: uploads and zips, added to folders of images; lists of these folders, thumbnails of files."""

from .adding import IF_FILE_EXISTS, KEEP_BOTH
from .image_folders import ImageFolder, describe_folder, list_image_folders
from .thumbnails import file_mask, file_picture, file_thumbnail
from .upload import FILES, MAX_ZIPS, Upload, remove_abandoned

__all__ = [
    "FILES",
    "IF_FILE_EXISTS",
    "KEEP_BOTH",
    "MAX_ZIPS",
    "ImageFolder",
    "Upload",
    "describe_folder",
    "file_mask",
    "file_picture",
    "file_thumbnail",
    "list_image_folders",
    "remove_abandoned",
]
