"""``protection``: the node's section, its sources, its certificates."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli import duty
from cotenant.cli.command import command, group
from cotenant.cli.options import NodeArg, OptionalNodeArg, YesFlag, agent_of, settings
from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.cli.review import ask

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["app", "register"]

FileArg = Annotated[Path, typer.Argument(metavar="FILE", help="A protection section (TOML).")]

# What a request to the agent may hold, with room for its escapes.
MAX_SECTION_BYTES = 256 * 1024

app = group("What the owner protects: the section, its sources, measurements and certificates.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="protection")
    duty.register(app)


@command(app, "preview", example="cotenant protection preview local node-protection.toml")
def preview(node: NodeArg, file: FileArg) -> OperationResult:
    """Validate a section and show what it would change and which processes match now. Changes nothing."""
    return _preview_result(agent_of(node).ask("section_preview", text=read_section(file)), file)


@command(
    app, "set", example="cotenant protection set local node-protection.toml\ncotenant protection set local s.toml --yes"
)
def set_section(node: NodeArg, file: FileArg, yes: YesFlag = False, as_json: bool = False) -> OperationResult:
    """Put a section in force, in the place of the node's own one: shows what changes, and asks."""
    text = read_section(file)
    from cotenant.cli.remote_section import is_remote, set_remote

    if is_remote(settings(), node):
        return set_remote(settings(), node, text, str(file), yes=yes)
    agent = agent_of(node)
    seen = _preview_result(agent.ask("section_preview", text=text), file)
    if seen.errors:
        return seen
    if not yes:
        _show_before_asking(seen)
    ask(
        f"Put this section in force on node {agent.node}?",
        yes=yes,
        what=f"protection section of node {agent.node}",
        again=f"cotenant protection set {agent.node} {file} --yes",
    )
    done = agent.ask("section_set", text=text, by=getpass.getuser())
    return OperationResult(
        done | {"node": agent.node, "matches": seen.data.get("matches")},
        view=lambda data: [f"section version {data['version']} is in force on node {agent.node}"],
    )


@command(app, "show", example="cotenant protection show local > node-protection.toml")
def show(
    node: NodeArg,
    version: Annotated[
        int | None, typer.Option("--version", min=0, help="An earlier one; the one in force by default.")
    ] = None,
) -> OperationResult:
    """The section in force, as it was set. The text alone goes to standard output, so it can be kept in a file."""
    wanted = {} if version is None else {"version": version}
    found = agent_of(node).ask("section_show", **wanted)
    if found["version"] == 0:
        note = f"node {node} has no section yet: nothing is protected. Set one: cotenant protection set {node} FILE"
    else:
        note = f"version {found['version']}, set at {found['set_at']} by {found['set_by']}"
    return OperationResult(
        found, messages=[note], view=lambda data: [data["text"].rstrip("\n")] if data["text"] else []
    )


@command(app, "sources", example="cotenant protection sources local")
def sources(node: OptionalNodeArg = None) -> OperationResult:
    """Each source: who reads it, its state, its rate or phase, and how fast a phase takes effect."""
    return OperationResult(agent_of(node).ask("sources"), view=_sources)


@command(
    app,
    "certificates",
    example="cotenant protection certificates local\ncotenant protection certificates check",
)
def certificates(
    node: OptionalNodeArg = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="All nodes', as they were issued, from the store.")] = False,
) -> OperationResult:
    """Each certificate: valid, expired or stale, why, and the command that renews it.

    "check" in a node's place lists what needs attention on all nodes of this machine; exit code 1 where anything does.
    """
    if node == "check":
        from cotenant.cli.certificates import check

        return check(settings())
    if fleet:
        from cotenant.cli.certificates import of_the_fleet

        return of_the_fleet(settings(), node)
    return OperationResult(agent_of(node).ask("certificates"), view=_certificates)


def read_section(file: Path) -> str:
    """The file's text.

    Raises:
        Refused: it cannot be read, is too large or no UTF-8.
    """
    from policies.refusal import Refused

    def no(why: str) -> Refused:
        return Refused(
            "SECTION_FILE", str(file), why, "name a protection section in TOML; docs/protection.md shows one"
        )

    try:
        raw = file.expanduser().read_bytes()
    except OSError as error:
        raise no(error.strerror or str(error)) from error
    if len(raw) > MAX_SECTION_BYTES:
        raise no(f"it has {len(raw)} bytes, and a section has at most {MAX_SECTION_BYTES}")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise no(f"line {line} is no UTF-8 text") from error


def _preview_result(seen: dict[str, Any], file: Path) -> OperationResult:
    if seen.get("ok"):
        return OperationResult(seen, view=_preview)
    errors = [
        OperationError(
            "SECTION_INVALID", str(file), _error_words(error), "correct it; the section in force stays", _data(error)
        )
        for error in seen.get("errors") or ["it is not valid"]
    ]
    return OperationResult(exit_code=Exit.REFUSED_INPUT, errors=errors)


def _data(error: Any) -> dict[str, Any]:
    return error if isinstance(error, dict) else {}


def _error_words(error: Any) -> str:
    """One complaint: where (line, rule, key) and what, whichever of these are known."""
    if not isinstance(error, dict):
        return str(error)
    where = [f"{name} {error[name]}" for name in ("line", "rule", "key") if error.get(name) not in (None, "")]
    said = str(error.get("message") or error.get("why") or error)
    if allowed := error.get("allowed"):
        said += f" (allowed: {allowed if isinstance(allowed, str) else ', '.join(str(name) for name in allowed)})"
    return f"{', '.join(where)}: {said}" if where else said


def _show_before_asking(seen: OperationResult) -> None:
    import sys

    from cotenant.cli.render import console

    out = console(sys.stderr)
    for part in _preview(seen.data):
        out.print(part, markup=False) if isinstance(part, str) else out.print(part)


def _preview(data: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    yield "changes:"
    yield from (f"  {_words(change)}" for change in data.get("changes") or ["none"])
    matches = data.get("matches") or []
    if matches:
        yield ""
        yield table(("rule", "matches now", "cannot be judged"), (_match_row(match) for match in matches))
    if held := data.get("held"):
        yield f"fleet work that would be held now: jobs {', '.join(str(job) for job in held)}"


def _words(change: Any) -> str:
    if isinstance(change, dict):
        return ", ".join(f"{key} {value}" for key, value in change.items())
    return str(change)


def _match_row(match: dict[str, Any]) -> tuple[object, ...]:
    shown = []
    for process in match.get("processes") or []:
        if isinstance(process, dict):
            argv = process.get("argv")
            words = " ".join(argv) if isinstance(argv, list) else process.get("name") or process.get("exe") or ""
            shown.append(f"{process.get('pid')} {words[:200]}".strip())
        else:
            shown.append(str(process))
    unreadable = match.get("unreadable")
    return (
        match.get("rule"),
        "\n".join(shown) or "nothing",
        len(unreadable) if isinstance(unreadable, list) else unreadable,
    )


def _sources(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not rows:
        yield "no sources: the section in force names none"
        return
    yield table(
        ("rule", "role", "state", "reads now", "reader", "watch", "p50/p99 ms", "path", "why"),
        (
            (
                row["rule"],
                row["role"],
                row["state"],
                _reading(row),
                row.get("reader"),
                row.get("watch"),
                _latency(row),
                row.get("path"),
                "; ".join(
                    str(part) for part in (row.get("why"), row.get("timed") and "its lines come on a timer") if part
                )
                or None,
            )
            for row in rows
        ),
    )


def _reading(row: dict[str, Any]) -> str | None:
    if row["role"] == "progress":
        return None if row.get("rate") is None else f"{row['rate']:.4g}/s"
    return row.get("phase")


def _latency(row: dict[str, Any]) -> str | None:
    p50, p99 = row.get("latency_p50_ms"), row.get("latency_p99_ms")
    return None if p50 is None or p99 is None else f"{p50:.2f} / {p99:.2f}"


def _certificates(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not rows:
        yield "no certificates; earn one with: cotenant protection ab start NODE --rule RULE"
        return
    yield table(
        ("rule", "work", "duty", "state", "kind", "R", "issued", "expires", "run", "why", "renew"),
        (_certificate_row(row) for row in rows),
    )


def _certificate_row(row: dict[str, Any]) -> tuple[object, ...]:
    validity = row.get("validity") or {}
    ratio = row.get("R")
    work = row.get("work")
    return (
        row.get("rule"),
        work if isinstance(work, str) else ", ".join(_work_name(item) for item in work or []),
        row.get("duty", row.get("certified_duty")),
        validity.get("state"),
        "demonstration" if row.get("demonstration") else "certificate",
        None if not isinstance(ratio, (int, float)) else f"{100 * ratio:.1f} %",
        (row.get("issued_at") or "")[:16],
        (row.get("expires_at") or "")[:16],
        row.get("run"),
        validity.get("why"),
        validity.get("renew"),
    )


def _work_name(item: Any) -> str:
    return f"{item.get('short') or item.get('module')}/{item.get('stage')}" if isinstance(item, dict) else str(item)
