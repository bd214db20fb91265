"""The `plait` command. Thin: every command parses, calls its room, and prints.

Imports stay inside the commands, so that `plait --help` and `plait check` answer at once and without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.router.command import router
from plait.router.key_command import key

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
    help="Plait: one key-value cache per context-parallel prefill group, for stock SGLang.",
)
model_app = typer.Typer(no_args_is_help=True, help="Make test models.")
app.add_typer(model_app, name="model")
app.command("router")(router)
app.command("key")(key)


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


@app.command()
def up(
    model: Annotated[Path, typer.Option(metavar="DIR", help="Model folder.")],
    cp: Annotated[int, typer.Option(help="Context-parallel prefill ranks.")] = 2,
    decode: Annotated[int, typer.Option(help="Decode engines.")] = 1,
    layout: Annotated[str, typer.Option(help="shared, or replicated (the reference).")] = "shared",
    split: Annotated[str, typer.Option(help="page-interleave or page-zigzag.")] = "page-interleave",
    chunk: Annotated[int, typer.Option(help="Tokens per prefill chunk, a multiple of 64.")] = 2048,
    port: Annotated[int | None, typer.Option(help="Port of the router (default: a free one).")] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="State file (default: in the run's folder).")
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Longest request in tokens (default: the model's).")
    ] = None,
    max_total_tokens: Annotated[
        int | None,
        typer.Option(
            help="KV tokens of the prefill group (default: what memory holds; on a CPU two longest requests)."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address that the router listens on; engines stay on loopback.")
    ] = "127.0.0.1",
    cpu: Annotated[
        bool | None, typer.Option("--cpu/--gpu", help="Run without CUDA (default: if there is none).")
    ] = None,
    prefill_arg: Annotated[
        list[str] | None, typer.Option(help="A further engine flag for prefill; may be given often.")
    ] = None,
    decode_arg: Annotated[
        list[str] | None, typer.Option(help="A further engine flag for decode; may be given often.")
    ] = None,
    start_timeout: Annotated[float, typer.Option(help="Seconds until everything must be ready.")] = 600.0,
) -> None:
    """Start a whole stack on this machine and keep it up; Ctrl-C or SIGTERM ends all of it."""
    from plait.contract.violation import ContractError
    from plait.stack.command import run_up
    from plait.stack.options import resolve
    from plait.stack.up import run_folder

    try:
        options = resolve(
            model=model,
            cp=cp,
            decode=decode,
            layout=layout,
            split=split,
            chunk=chunk,
            context_length=context_length,
            max_total_tokens=max_total_tokens,
            cpu=cpu,
            host=host,
            prefill_args=prefill_arg or (),
            decode_args=decode_arg or (),
            folder=run_folder(),
        )
    except ContractError as error:
        raise _fail(f"these options are refused:\n{error}") from error
    raise typer.Exit(run_up(options, port=port, state=state, start_timeout_s=start_timeout))


@app.command()
def demo(
    cp: Annotated[int, typer.Option(help="Context-parallel prefill ranks.")] = 2,
    decode: Annotated[int, typer.Option(help="Decode engines.")] = 1,
) -> None:
    """Make a tiny model, start a stack, stream one long chat, show shared against replicated, end it all."""
    from plait.stack.demo import run_demo

    raise typer.Exit(run_demo(cp=cp, decode=decode))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A stack's configuration, YAML or JSON.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Hold a stack's configuration against the contract; shows all that is wrong, with fixes."""
    from plait.stack.check import run_check

    raise typer.Exit(run_check(file, as_json=as_json))


@app.command()
def plan(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Manifests with a SharedKVDeployment (-: standard input).")
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model's config.json, if the spec names no family or shape."),
    ] = None,
    api: Annotated[
        list[str] | None,
        typer.Option(help="An optional kind that the cluster has, as ServiceMonitor; may be given often."),
    ] = None,
    experimental: Annotated[
        list[str] | None, typer.Option(help="A feature that the operator lets through; may be given often.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print the objects as YAML.")] = False,
) -> None:
    """Show what the operator would do for a manifest, without a cluster."""
    if as_json and as_yaml:
        raise _fail("--json and --yaml exclude each other: give one")
    try:
        from plait_operator.children.context import Release
        from plait_operator.plan_command import Output, PlanError, run_plan
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plait_operator":
            raise
        raise _fail("the operator's package is not installed here: pip install 'plait[operator]'") from error
    form: Output = "json" if as_json else "yaml" if as_yaml else "table"
    release = Release(experimental=frozenset(experimental or ()))
    try:
        code = run_plan(file, form=form, config=config, apis=frozenset(api or ()), release=release)
    except PlanError as error:
        raise _fail(str(error)) from error
    raise typer.Exit(code)


@app.command()
def doctor(
    hooks: Annotated[
        bool, typer.Option("--hooks/--no-hooks", help="Try the hooks on the installed engine (slow).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Settings in force, hooks and their state, versions, and what this machine can do."""
    from plait.stack.doctor import run_doctor

    raise typer.Exit(run_doctor(hooks=hooks, as_json=as_json))


@app.command("engine", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def engine(context: typer.Context) -> None:
    """Check the engine flags given after `--`, then run stock SGLang with them."""
    from plait.engine.__main__ import main as run_engine

    run_engine(context.args)


def main() -> None:
    """Entry point of the `plait` script."""
    app()


if __name__ == "__main__":
    main()
