"""The forms of names and ids in requests, as regular expressions for Python and for docs/openapi.json alike.

The server takes everything that matches. It also takes a few names that do not, such as one with spaces around it; for
names it does not take, the checks of `parse_name` and `check_run_name` give the reason.
"""

# Windows opens a device under these names in every folder, with any extension. Upper and lower case is spelled out,
# because patterns in OpenAPI have no flags.
_DEVICE = (
    r"(?:[cC][oO][nN]|[pP][rR][nN]|[aA][uU][xX]|[nN][uU][lL]|[cC][oO][nN][iIıİ][nN]\$|[cC][oO][nN][oO][uU][tT]\$"
    r"|(?:[cC][oO][mM]|[lL][pP][tT])[0-9¹²³])"
)
_SPACE = r"\s\x1c-\x1f\x85"
_FORBIDDEN = r"\x00-\x1f\x7f<>:\"|?*/\\\ud800-\udfff"
_EDGE = rf"[^{_FORBIDDEN}{_SPACE}.]"
# At most 120 characters, and 230 bytes in UTF-8 (see `is_long_name`), whatever the characters are.
_LENGTHS = (
    r"[\u0000-\u002e\u0030-\u007f]{1,120}",
    r"[\u0000-\u002e\u0030-\u07ff]{1,115}",
    r"[\u0000-\u002e\u0030-\uffff]{1,76}",
    r"[^/]{1,57}",
)
_SHORT = rf"(?=(?:{'|'.join(_LENGTHS)})(?:/|$))"
_PART = rf"(?!{_DEVICE}[{_SPACE}]*(?:[./]|$)){_SHORT}{_EDGE}(?:[^{_FORBIDDEN}]*{_EDGE})?"

CACHE_NAME = rf"^{_PART}(?:/{_PART}){{0,7}}$"  # group/my_set
RUN_NAME = rf"^(?!~){_PART}$"
SAMPLE_FILE = r"^step-([0-9]{1,12})-([0-9]{1,4})\.png$"
GRID_FILE = r"^[0-9a-f]{16,64}\.png$"
TRASH_ID = r"^[0-9a-f]{32}$"
JOB_ID = r"^[0-9a-f]{16}$"
SEARCH = rf"^[{_SPACE}]*(?:[^{_SPACE}]+[{_SPACE}]+){{0,19}}[^{_SPACE}]*$"  # at most 20 words
