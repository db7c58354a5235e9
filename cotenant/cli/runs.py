"""Finding a run by its id: with the agents of this machine first, in the store else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cotenant.cli.agents import Agent, local_nodes
from cotenant.cli.failures import Unreachable
from cotenant.cli.result import Exit
from policies.harness.verdict import PASS

if TYPE_CHECKING:
    from cotenant.cli.queued import Queued
    from cotenant.settings import Settings

__all__ = ["NO_STORE", "Found", "ending_exit", "find_run", "made_store", "of_store", "owner_of", "store_engine"]

Told = TypeVar("Told")
# Said where nothing was ever kept: to look must not make a store.
NO_STORE = "this home has no store yet: cotenant up"


@dataclass(frozen=True, slots=True)
class Found:
    """A RunRecord, and who told it."""

    record: dict[str, Any]
    told_by: Literal["agent", "store"]
    node: str


def ending_exit(record: dict[str, Any]) -> Exit:
    """Exit code for a run's answer. A run that goes on has none yet, which is done for who only looks."""
    return Exit.DONE if record.get("ending") in (None, PASS) else Exit.OTHER_ANSWER


def find_run(settings: Settings, run: str) -> Found:
    """The run's record.

    Raises:
        Refused: no agent that answers knows it, and the store does not either.
    """
    from policies.refusal import Refused

    silent: list[str] = []
    for node in local_nodes(settings.home):
        try:
            return Found(dict(Agent(settings, node).ask("run_show", run=run)), "agent", node)
        except Unreachable:
            silent.append(node)
        except Refused as refusal:
            if refusal.code != "RUN_UNKNOWN":
                raise
    kept = _from_store(settings, run)
    if kept is not None:
        return Found(kept, "store", str(kept.get("node", "")))
    waiting = _queued(settings, run)
    if waiting is not None and waiting.node not in silent:  # an agent that was not asked may have begun it
        raise Refused(
            "RUN_NOT_BEGUN",
            f"run {run}",
            f"it has no report yet: {waiting.words}",
            f"cotenant protection ab status {waiting.node} --watch",
        )
    asked = f"; not asked, since their agents do not run: {', '.join(silent)}" if silent else ""
    raise Refused(
        "RUN_UNKNOWN", f"run {run}", f"no run of this name is known here{asked}", "cotenant protection ab list"
    )


def _queued(settings: Settings, run: str) -> Queued | None:
    from cotenant.cli.queued import queued_runs

    try:
        return next((entry for entry in queued_runs(settings) if run in (entry.run, entry.flow_run_id)), None)
    except Unreachable:  # then nobody knows the run, which is what is said
        return None


def owner_of(settings: Settings, run: str) -> Agent:
    """The agent that has this run in its journal (an abort is for it alone).

    Raises:
        Refused: no agent that answers has it.
        Unreachable: none answers at all.
    """
    from policies.refusal import Refused

    nodes = local_nodes(settings.home)
    lost: Unreachable | None = None
    for node in nodes:
        agent = Agent(settings, node)
        try:
            agent.ask("run_show", run=run)
            return agent
        except Unreachable as error:
            lost = error
        except Refused as refusal:
            if refusal.code != "RUN_UNKNOWN":
                raise
    if lost is not None:
        raise lost
    raise Refused("RUN_UNKNOWN", f"run {run}", "no node of this machine has it", "cotenant protection ab list")


def store_engine(settings: Settings) -> Any | None:
    """The store, or None where there is none yet (looking must not make one).

    Raises:
        Unreachable: it is there and cannot be opened.
    """
    if settings.store_url is None and not (settings.home / "store.sqlite").exists():
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    from cotenant import store

    try:
        shown = make_url(settings.store).render_as_string(hide_password=True)
    except ArgumentError as error:  # not said again: what it was meant to be may have a password in it
        why, remedy = "it is no address of a database", "write it as postgresql://USER:PASSWORD@HOST:5432/DATABASE"
        raise Unreachable("STORE_UNREACHABLE", "the store's URL", why, remedy) from error
    try:
        return store.open(settings.store)
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).splitlines()[0]
        remedy = "check the URL (--store, else COTENANT_STORE_URL), or start its database"
        raise Unreachable("STORE_UNREACHABLE", f"store {shown}", said, remedy) from error
    except ImportError as error:
        remedy = "install it: make setup, or pip install '.[postgres]'"
        raise Unreachable("STORE_UNREACHABLE", f"store {shown}", f"its driver is missing: {error}", remedy) from error


def made_store(settings: Settings, what: str) -> Any:
    """The store, which has ``what`` where anything has.

    Raises:
        Refused: there is none yet.
        Unreachable: as ``store_engine``.
    """
    from policies.refusal import Refused

    engine = store_engine(settings)
    if engine is None:
        raise Refused("STORE_NONE", what, "this home has no store yet", "cotenant up")
    return engine


def of_store(settings: Settings, read: Callable[[Any], Told]) -> Told | None:
    """What this reads of the store; None where there is none yet.

    Raises:
        Unreachable: as ``store_engine``.
    """
    engine = store_engine(settings)
    if engine is None:
        return None
    try:
        return read(engine)
    finally:
        engine.dispose()


def _from_store(settings: Settings, run: str) -> dict[str, Any] | None:
    def load(engine: Any) -> dict[str, Any] | None:
        from cotenant import store

        return store.load_run(engine, run)

    return of_store(settings, load)
