"""One sample of a dataset: its fields, built from the index when they are looked at, with lazy tensors."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..format import SampleFacts, realize


class Fields(Mapping[str, Any]):
    """Structures of a sample, or of a batch, by name. Each is built on first access and then stays the same object."""

    def __init__(self, names: tuple[str, ...], build: Callable[[str], Any]) -> None:
        self._names = names
        self._build = build
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            if name not in self._names:
                raise KeyError(name)
            self._built[name] = self._build(name)
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, kw_only=True)
class Sample(SampleFacts):
    """A sample as it was stored. Tensors are lazy until `realize`; `captions` has one text per conditioning variant."""

    index: int
    fields: Mapping[str, Any]
    caption: str

    @property
    def latent(self) -> Any:
        return self.fields.get("latent")

    @property
    def conditioning(self) -> Any:
        return self.fields.get("conditioning")

    def realize(self) -> "Sample":
        """The same sample with every tensor in memory."""
        fields = {name: realize(value) for name, value in self.fields.items()}
        return replace(self, fields=fields)
