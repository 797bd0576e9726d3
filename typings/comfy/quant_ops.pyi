from typing import Any

ck: Any
