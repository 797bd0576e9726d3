"""Refusals: what a page asked for and does not get, with a sentence for people."""


class Refused(ValueError):
    """`status` is the HTTP status that says the same to a program."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
