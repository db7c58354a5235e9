"""``protection preview``, ``set``, ``show`` and ``restore``: the node's sections, its own and the fleet's."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.failures import Unreachable
from cotenant.cli.options import NodeArg, YesFlag, agent_of, settings
from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.cli.review import ask

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cotenant.cli.agents import Agent

__all__ = ["read_section", "register"]

FileArg = Annotated[Path, typer.Argument(metavar="FILE", help="A protection section (TOML).")]
FleetFlag = Annotated[bool, typer.Option("--fleet", help="The fleet's section: it binds beside each node's own.")]

# What a request to the agent may hold, with room for its escapes.
MAX_SECTION_BYTES = 256 * 1024


def register(app: typer.Typer) -> None:
    @command(app, "preview", example="cotenant protection preview local node-protection.toml")
    def preview(node: NodeArg, file: FileArg, fleet: FleetFlag = False) -> OperationResult:
        """Validate a section and show what it would change, what matches now and what would be held. Changes nothing."""
        from cotenant.cli.remote_section import is_remote, preview_remote

        text = read_section(file)
        if is_remote(settings(), node):
            return _preview_result(preview_remote(settings(), node, text, of_fleet=fleet), str(file))
        return _preview_result(_previewed(agent_of(node), text, _scope(fleet)), str(file))

    @command(
        app,
        "set",
        example="cotenant protection set local node-protection.toml\ncotenant protection set local s.toml --yes\n"
        "cotenant protection set local fleet.toml --fleet",
    )
    def set_section(node: NodeArg, file: FileArg, fleet: FleetFlag = False, yes: YesFlag = False) -> OperationResult:
        """Put a section in force, in the place of the node's own one: shows what changes, and asks.

        With --fleet it is the fleet's section, sent to every node: rules of both apply, and of each [node] key the stricter
        value.
        """
        text = read_section(file)
        again = f"cotenant protection set {node} {file}{' --fleet' if fleet else ''} --yes"
        if fleet:
            return _set_everywhere(node, text, str(file), yes=yes, again=again)
        from cotenant.cli.remote_section import is_remote, set_remote

        if is_remote(settings(), node):
            return set_remote(settings(), node, text, str(file), yes=yes)
        return _set(agent_of(node), text, "node", str(file), yes=yes, again=again, by=getpass.getuser())

    @command(app, "restore", example="cotenant protection restore local 3\ncotenant protection restore local 3 --yes")
    def restore(
        node: NodeArg,
        version: Annotated[int, typer.Argument(metavar="VERSION", min=0, help="A version; 0 is the empty section.")],
        yes: YesFlag = False,
    ) -> OperationResult:
        """Put an earlier version of a section in force again, as a new version: shows what changes, and asks."""
        agent = agent_of(node)
        kept = agent.ask("section_show", version=version)
        by = f"{getpass.getuser()} (restored version {version})"
        again = f"cotenant protection restore {node} {version} --yes"
        what = f"section version {version}"
        return _set(agent, kept["text"], kept.get("scope") or "node", what, yes=yes, again=again, by=by)

    @command(
        app,
        "show",
        example="cotenant protection show local > node-protection.toml\ncotenant protection show local --versions",
    )
    def show(
        node: NodeArg,
        version: Annotated[
            int | None, typer.Option("--version", min=0, help="An earlier one; the one in force by default.")
        ] = None,
        fleet: FleetFlag = False,
        versions: Annotated[bool, typer.Option("--versions", help="List all versions instead.")] = False,
    ) -> OperationResult:
        """The section in force, as it was set. The text alone goes to standard output, so it can be kept in a file."""
        agent = agent_of(node)
        if versions:
            return OperationResult(agent.ask("section_versions"), view=_versions)
        from cotenant.cli.render import when

        wanted: dict[str, Any] = {} if version is None else {"version": version}
        found = agent.ask("section_show", **wanted, **({"scope": "fleet"} if fleet else {}))
        if found["version"] == 0:
            whose = "it has no fleet section" if fleet else f"node {node} has no section yet: nothing is protected"
            note = f"{whose}. Set one: cotenant protection set {node} FILE{' --fleet' if fleet else ''}"
        else:
            note = f"version {found['version']}, set at {when(found['set_at'])} by {found['set_by']}"
        return OperationResult(
            found, messages=[note], view=lambda data: [data["text"].rstrip("\n")] if data["text"] else []
        )


def _scope(fleet: bool) -> str:
    return "fleet" if fleet else "node"


def _previewed(agent: Agent, text: str, scope: str) -> dict[str, Any]:
    more = {"scope": scope} if scope != "node" else {}
    found: dict[str, Any] = agent.ask("section_preview", text=text, **more)
    return found


def _set(agent: Agent, text: str, scope: str, source: str, *, yes: bool, again: str, by: str) -> OperationResult:
    seen = _preview_result(_previewed(agent, text, scope), source)
    if seen.errors:
        return seen
    if not yes:
        _show_before_asking(seen)
    whose = "the fleet's protection section" if scope == "fleet" else "this section"
    ask(
        f"Put {whose} in force on node {agent.node}?",
        yes=yes,
        what=f"protection section of node {agent.node}",
        again=again,
    )
    more = {"scope": scope} if scope != "node" else {}
    done = agent.ask("section_set", text=text, by=by, **more)
    return OperationResult(
        done | {"node": agent.node, "matches": seen.data.get("matches"), "warnings": seen.data.get("warnings")},
        messages=[f"note: {warning}" for warning in seen.data.get("warnings") or []] + _lost(agent.node, done),
        view=lambda data: [f"section version {data['version']} is in force on node {data['node']}"],
    )


def _lost(node: str, done: dict[str, Any]) -> list[str]:
    """What is not known since the node's journal was lost: a section that nobody sets holds all its fleet work."""
    return [
        f"all fleet work of node {node} is held: its journal was lost, and with it the {scope}'s section. Set that, too: cotenant "
        f"protection set {node} FILE"
        + (" --fleet (an empty FILE where the fleet has none)" if scope == "fleet" else "")
        for scope in done.get("lost") or []
    ]


def _set_everywhere(node: str, text: str, source: str, *, yes: bool, again: str) -> OperationResult:
    """The fleet's section on every node: previewed on those of this machine, asked once, then sent to all."""
    from cotenant.cli.agents import local_nodes
    from cotenant.cli.failures import as_result
    from cotenant.cli.remote_section import is_remote, remote_nodes, set_remote
    from policies.refusal import Refused

    in_force = settings()
    here = [name for name in dict.fromkeys([node, *local_nodes(in_force.home)]) if not is_remote(in_force, name)]
    elsewhere = remote_nodes(in_force)
    agents = [agent_of(name) for name in here]
    previews = {agent.node: _preview_result(_previewed(agent, text, "fleet"), source) for agent in agents}
    if bad := next((seen for seen in previews.values() if seen.errors), None):
        return bad
    if not yes:
        for name, seen in previews.items():
            _say(f"node {name}:")
            _show_before_asking(seen)
    names = ", ".join([*previews, *elsewhere])
    ask(f"Put this fleet section in force on {names}?", yes=yes, what="the fleet's protection section", again=again)
    rows: list[dict[str, Any]] = []
    lost: list[str] = []
    failed: list[OperationResult] = []  # one node's no keeps it from none of the others
    for agent in agents:
        try:
            done = agent.ask("section_set", text=text, by=getpass.getuser(), scope="fleet")
            rows.append({"node": agent.node, "version": done["version"], "changes": done["changes"]})
            lost += _lost(agent.node, done)
        except (Refused, Unreachable) as no:
            failed.append(as_result(no))
    for name in elsewhere:
        try:
            sent = set_remote(in_force, name, text, source, yes=True, of_fleet=True)
        except (Refused, Unreachable) as no:
            sent = as_result(no)
        if sent.errors:
            failed.append(sent)
        else:
            rows.append({"node": name, "version": None, "changes": [sent.data["message"]]})
    return OperationResult(
        {"nodes": rows},
        messages=lost,
        errors=[error for each in failed for error in each.errors],
        exit_code=max((each.exit_code for each in failed), default=Exit.DONE),
        view=lambda data: [f"the fleet's section is in force on node {row['node']}" for row in data["nodes"]],
    )


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


def _preview_result(seen: dict[str, Any], source: str) -> OperationResult:
    if seen.get("ok"):
        return OperationResult(seen, view=_preview)
    errors = [
        OperationError(
            "SECTION_INVALID", source, _error_words(error), "correct it; the section in force stays", _data(error)
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
    for part in _preview(seen.data):
        _say(part)


def _say(part: RenderableType) -> None:
    import sys

    from cotenant.cli.render import console, show

    show(console(sys.stderr), part)


def _preview(data: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    for warning in data.get("warnings") or []:
        yield f"WARNING: {warning}"
    yield "changes:"
    yield from (f"  {_words(change)}" for change in data.get("changes") or ["none"])
    matches = data.get("matches") or []
    if matches:
        yield ""
        yield table(("rule", "matches now", "cannot be judged"), (_match_row(match) for match in matches))
        if any(match.get("unreadable") for match in matches):
            yield "what cannot be judged counts as the program for holding, and for nothing else (PROTECTION_UNREADABLE)"
    if why := data.get("held_why"):
        yield ""
        yield table(("job", "would", "code", "why"), (row for job in why for row in _held_rows(job)))
    elif held := data.get("held"):
        yield f"fleet work that would be held now: jobs {', '.join(str(job) for job in held)}"


def _held_rows(job: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for at, reason in enumerate(job["reasons"]):
        yield (*((job["job"], job["action"]) if at == 0 else ("", "")), reason["code"], reason["why"])


def _versions(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when

    if not rows:
        yield "no section was set yet"
        return
    yield table(
        ("version", "of", "set at", "by", "in force", "digest"),
        (
            (
                row["version"],
                row["scope"],
                when(row["set_at"]),
                row["set_by"],
                bool(row["in_force"]),
                row["digest"][:12],
            )
            for row in rows
        ),
    )


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
