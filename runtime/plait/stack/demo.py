"""`plait demo`: a tiny model, a whole stack, one long streamed chat, and the figures; then it all ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError
from plait.model.sample import sample_text
from plait.model.shape import TinyShape
from plait.model.write import ModelExistsError, write_tiny
from plait.stack.chat import ChatError, Piece, stream_chat
from plait.stack.display import report_to
from plait.stack.figures import Comparison, FiguresError, Layouts, RankTransfer, read_figures
from plait.stack.options import resolve
from plait.stack.plan import StackPlan, plan_stack
from plait.stack.ports import PortError
from plait.stack.refusals import refusals
from plait.stack.supervise import StackError, StopRequested, Supervisor
from plait.stack.up import RUNS, choose_ports, run_folder, running

CONTEXT = 8192
CHUNK = 1024
QUESTION_TOKENS = 48


def run_demo(*, cp: int, decode: int, folder: Path | None = None) -> int:
    """Exit status 0 when the chat was answered and everything has ended; 1 otherwise; 128 + signal."""
    console, begin = Console(), time.monotonic()
    try:
        plan = _prepare(console, folder or RUNS / "demo-model", cp=cp, decode=decode)
        state = plan.options.folder / "state.json"
        with running(plan, report=report_to(), state=state) as supervisor:
            console.print(f"[green]ready[/] after {time.monotonic() - begin:.0f} s at {plan.router_url}")
            _chat(console, plan, supervisor)
            _show_figures(console, plan)
    except StopRequested as stop:
        console.print(f"stopped by {stop}: everything has ended", highlight=False)
        return 128 + stop.signum
    except (ContractError, ModelExistsError, PortError, StackError, ChatError, FiguresError) as error:
        console.print(Text(f"plait demo: {error}", "red"), soft_wrap=True)
        return 1
    console.print(f"everything has ended; {time.monotonic() - begin:.0f} s in all", highlight=False)
    return 0


def _prepare(console: Console, model: Path, *, cp: int, decode: int) -> StackPlan:
    shape = TinyShape(context=CONTEXT)
    done = "made" if write_tiny(model, shape) else "found"
    console.print(
        f"[bold]Plait demo[/]: {cp} context-parallel prefill ranks with one shared cache, {decode} decode\n"
        f"{done} a tiny model with random weights in {escape(str(model))}: GLM-5's KV rows, "
        f"{shape.layers} layers, top-{shape.topk} selection",
        highlight=False,
    )
    plan_options = resolve(
        model=model,
        cp=cp,
        decode=decode,
        layout="shared",
        split="page-interleave",
        chunk=CHUNK,
        context_length=CONTEXT,
        max_total_tokens=None,
        cpu=None,
        host="127.0.0.1",
        prefill_args=(),
        decode_args=(),
        folder=run_folder(),
    )
    plan = plan_stack(plan_options, choose_ports(plan_options))
    refused = refusals(plan)
    if refused:
        raise ContractError(refused)
    return plan


def _chat(console: Console, plan: StackPlan, supervisor: Supervisor) -> None:
    """The shipped text as one long prompt; its answer is shown as it streams."""
    text = sample_text()
    console.print(f"\n[bold]A chat over a text of {len(text.split())} words[/], which begins and ends so:")
    first, *_, last = [line for line in text.splitlines() if line]
    console.print(Text(f"  {first} ... {last}", "dim"))
    console.print("The answer, as it streams (the weights are random, so it means nothing):")
    heard: list[Piece] = []
    messages = [{"role": "user", "content": text}]
    for piece in stream_chat(
        plan.router_url,
        messages,
        model=plan.options.model.name,
        max_tokens=QUESTION_TOKENS,
        watch=supervisor.check,
    ):
        heard.append(piece)
        console.print(Text(printable(piece.text), "cyan"), end="")
    console.print()
    usage = next((piece.usage for piece in heard if piece.usage), None)
    spoken = [piece for piece in heard if piece.text]
    if usage is None or not spoken:
        raise ChatError("the answer came without text or without its usage")
    console.print(
        f"{usage['prompt_tokens']} prompt tokens in chunks of {plan.options.chunk}, "
        f"{usage['completion_tokens']} answer tokens; first text after {spoken[0].seconds:.1f} s, "
        f"all after {heard[-1].seconds:.1f} s",
        highlight=False,
    )


def printable(text: str) -> str:
    """`text` without characters that would steer a terminal or cannot be shown."""
    return "".join(each if each.isprintable() else "·" for each in text)


def _show_figures(console: Console, plan: StackPlan) -> None:
    layers = ModelShape.from_path(plan.options.model).num_hidden_layers
    comparison, transfers = read_figures(plan.router_url, layers=layers)
    console.print()
    console.print(layout_table(comparison))
    console.print(
        f"Beside the pool each rank keeps {decimal(comparison.scratch_bytes)} of dense scratch, whatever the "
        f"pool's size. Prefetch of the next layer: {comparison.prefetch_hits} hits, "
        f"{comparison.prefetch_late} late, {comparison.prefetch_fallbacks} fallbacks.",
        highlight=False,
    )
    console.print(transfer_table(comparison, transfers))


def layout_table(figures: Comparison) -> Table:
    """Shared (measured) against replicated (computed for the same pool), per rank."""
    table = Table(title=f"One cache for {figures.ranks} ranks, or a copy on each", title_justify="left")
    table.add_column("")
    table.add_column("shared (measured)", justify="right", style="green")
    table.add_column("replicated (computed)", justify="right")
    table.add_column("factor", justify="right")

    def row(label: str, both: Layouts, show: Callable[[int], str]) -> None:
        table.add_row(label, show(both.shared), show(both.replicated), f"{both.ratio:.2f} x")

    row(f"pool bytes per rank for {figures.tokens.shared:,} tokens", figures.bytes_for_pool, decimal)
    row("tokens of capacity at the same bytes per rank", figures.tokens, "{:,}".format)
    row("pages per rank", figures.pages, "{:,}".format)
    return table


def transfer_table(figures: Comparison, transfers: list[RankTransfer]) -> Table:
    """What each prefill rank holds now and has sent to decode."""
    table = Table(title="From prefill to decode: each rank sends the pages it owns", title_justify="left")
    for name in ("rank", "pages cached", "pages sent", "bytes sent", "seconds", "failures"):
        table.add_column(name, justify="right")
    for each in transfers:
        cached = figures.used_pages[each.rank]
        cells = (each.rank, cached, each.pages, decimal(each.bytes), f"{each.seconds:.3f}", each.failures)
        table.add_row(*(str(cell) for cell in cells))
    return table
