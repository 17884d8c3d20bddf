"""Which model a user means, in the terms of the engine, with a progress bar while it is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from meshnet.cli.interrupts import raise_interrupts
from meshnet.cli.settings import Settings, Weights
from meshnet.core.vocabulary import ModelId, NoTemplate, WeightFormat
from meshnet.engine.models.pull import LocalModel, resolve, resolve_config

if TYPE_CHECKING:
    from meshnet.engine.text import HFText


class Bars:
    """The engine's progress, drawn on standard error; nothing is drawn where nothing happens."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None

    def start(self, label: str, total: int | None) -> None:
        self._progress.start()
        self._task = self._progress.add_task(label, total=total)

    def advance(self, amount: int) -> None:
        if self._task is not None:
            self._progress.advance(self._task, amount)

    def done(self) -> None:
        if self._task is not None:
            total = self._progress.tasks[-1].total or 1
            self._progress.update(self._task, total=total, completed=total)
        self._task = None
        self._progress.stop()


def resolve_model(model: str, settings: Settings) -> LocalModel:
    """Find, fetch or convert a model. Raises ModelError."""
    raise_interrupts()
    return resolve(model, Path(settings.cache_dir), Bars())


def resolve_shape(model: str, settings: Settings) -> LocalModel:
    """Find what tells the shape of a model, and no weights where it can. Raises ModelError."""
    raise_interrupts()
    return resolve_config(model, Path(settings.cache_dir), Bars())


def load_text(source: LocalModel) -> HFText:
    """Return the model's tokenizer, template and stop ids. Raises ModelError."""
    from meshnet.engine.text import HFText

    return HFText.load(source.path, ModelId(source.name))


def prompt_ids(text: HFText, words: str) -> list[int]:
    """Return `words` as one user turn, or as they are for a model without a chat template."""
    try:
        return text.render_chat([{"role": "user", "content": words}], {})
    except NoTemplate:
        return text.encode(words, special=True)


def format_of(weights: Weights) -> WeightFormat | None:
    """Return the format to load in; None leaves it to the engine."""
    return None if weights is Weights.AUTO else WeightFormat(weights.value)


def pull_model(settings: Settings) -> None:
    """Make the model ready on this machine and say where it is. Raises ModelError."""
    found = resolve_model(settings.model, settings)
    size = sum(file.stat().st_size for file in found.path.rglob("*") if file.is_file())
    print(f"{found.name} is at {found.path} ({size / 1e6:.0f} MB)")
