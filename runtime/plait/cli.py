"""The `plait` command. Thin: every command parses, calls its room, and prints.

Imports stay inside the commands, so that `plait --help` and `plait check` answer at once and without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="One KV cache per context-parallel group.")
model_app = typer.Typer(no_args_is_help=True, help="Make test models.")
app.add_typer(model_app, name="model")


def _fail(message: str, code: int = 2) -> typer.Exit:
    typer.echo(f"plait: {message}", err=True)
    return typer.Exit(code)


@model_app.callback()
def _model() -> None:
    """Make test models."""


@model_app.command("tiny")
def model_tiny(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the model goes.")],
    topk: Annotated[int, typer.Option(help="Keys that the indexer selects per query.")] = 64,
    index_heads: Annotated[int, typer.Option(help="Indexer query heads, at least 16.")] = 16,
    layers: Annotated[int, typer.Option(help="Decoder layers; the first is dense.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides every weight.")] = 0,
    context: Annotated[int, typer.Option(help="Longest sequence, in tokens.")] = 8192,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a folder that holds something else.")
    ] = False,
) -> None:
    """Random weights in the GLM-5 shape with real KV rows, a tokenizer and a chat template."""
    from plait.model.shape import ShapeError, TinyShape
    from plait.model.write import ModelExistsError, write_tiny

    try:
        shape = TinyShape(topk=topk, index_heads=index_heads, layers=layers, seed=seed, context=context)
        written = write_tiny(folder, shape, force=force)
    except (ShapeError, ModelExistsError) as error:
        raise _fail(str(error)) from error
    typer.echo(f"{folder}: {'written' if written else 'already there'}")


def main() -> None:
    """Entry point of the `plait` script."""
    app()


if __name__ == "__main__":
    main()
