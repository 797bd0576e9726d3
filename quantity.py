"""How numbers are written in texts for people: counts with their noun, and sizes with their unit."""


def plural(count: int, noun: str) -> str:
    """`1 sample`, `2 samples`, `3 entries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def byte_count(count: int) -> str:
    """`1.4 GB`, in decimal units as disks are sold."""
    if abs(count) < 1000:
        return plural(count, "byte")
    size = count / 1000
    for unit in ("KB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
