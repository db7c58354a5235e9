"""The agent's process: ``python -m nodes.agent --home DIR --node NAME``."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import pwd
import re
import signal
import sys
from pathlib import Path

from nodes import patience
from nodes.agent.core import Agent
from nodes.agent.lean import give_back_memory
from nodes.agent.prompt import ask_for_short_turns, ask_to_come_first
from nodes.agent.verbs import Verbs
from nodes.client import node_dir, socket_path
from nodes.clock import monotonic_s
from nodes.rpc import RpcServer

log = logging.getLogger("cotenant.agent")

NODE_NAME = re.compile(r"^[a-z0-9][a-z0-9_.-]{0,62}$", re.IGNORECASE)
SHUTDOWN_WITHIN_S = 45.0
JOB_STEP_MIN_S = 0.05
SETTLED_AFTER_S = 10.0
# After so long the loop hands the interpreter over to the lookout's thread, where a line comes in the middle of a tick.
SWITCH_S = 2e-4
# From waking to the last signal on a slow core; the kernel's own slice is 0.7 ms and more.
LOOKOUT_SLICE_NS = 500_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nodes.agent", description="The protection agent of one node.")
    parser.add_argument("--home", type=Path, required=True, help="COTENANT_HOME")
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument(
        "--modules",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "modules",
        help="bundles that come with the product",
    )
    parser.add_argument("--slots", type=int, default=0, help="jobs that may run at once (default: usable cores)")
    parser.add_argument(
        "--pace",
        type=float,
        default=1.0,
        help="for tests: the tick, and every time of governor and compliance check, divided by this",
    )
    parser.add_argument(
        "--owners", type=_uids, default=frozenset(), metavar="UID,…", help="accounts that a second socket serves"
    )
    parser.add_argument("--owner-socket", type=Path, help="where (default /run/cotenant/NODE.owners.sock)")
    asked = parser.parse_args()
    if not 1.0 <= asked.pace <= 20.0:
        print(f"--pace {asked.pace:g}: it is between 1 and 20", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if not NODE_NAME.match(asked.node):
        print(f"node name {asked.node!r}: letters, digits, '-', '_' and '.', at most 63", file=sys.stderr)
        return 2
    os.umask(0o077)
    lock = take_lock(asked.home, asked.node)
    if lock is None:
        print(f"an agent for node {asked.node} runs already in {asked.home}; see: cotenant status", file=sys.stderr)
        return 2
    second = asked.owner_socket or Path(f"/run/cotenant/{asked.node}.owners.sock") if asked.owners else None
    return asyncio.run(run(asked.home, asked.node, asked.modules, asked.slots, asked.pace, asked.owners, second))


def _uids(text: str) -> frozenset[int]:
    """Numbers or account names, with commas between. Raises ValueError."""
    return frozenset(int(part) if part.isdigit() else _uid_of(part) for part in text.split(",") if part)


def _uid_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no account {name!r}") from None


def take_lock(home: Path, node: str) -> int | None:
    """The node's agent lock for the life of this process; None when another agent has it. Close-on-exec, so no child keeps it."""
    where = node_dir(home, node)
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(where / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


async def run(
    home: Path,
    node: str,
    modules: Path,
    slots: int,
    pace: float = 1.0,
    owners: frozenset[int] = frozenset(),
    owner_socket: Path | None = None,
) -> int:
    patience.install()
    ask_for_short_turns()
    agent = Agent(home, node, modules, pace, owner_socket)
    agent.slots = slots if slots > 0 else agent.slots
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent.start()
    if agent.at_once.look_out(lambda: ask_to_come_first() or ask_for_short_turns(LOOKOUT_SLICE_NS)):
        sys.setswitchinterval(SWITCH_S)
    loop.add_reader(agent.hub.fileno(), agent.on_source_event)
    verbs = Verbs(agent)
    servers = [RpcServer(socket_path(home, node), verbs.table())]
    if owner_socket is not None:
        from nodes.agent.owner_verbs import OwnerVerbs

        served = owners | {0, os.getuid()}
        servers.append(RpcServer(owner_socket, OwnerVerbs(agent, verbs).table(), uids=served, mode=0o666))
    # The first tick judges every rule before anything is let go or admitted, and before anybody can ask.
    agent.tick()
    await servers[0].start()
    for second in servers[1:]:
        try:
            await second.start()
        except OSError as error:
            # the owners and their helper are not heard; what the agent protects, it protects all the same
            log.error("the owners' socket %s cannot be made: %s", second.path, error)
    log.info("node %s: agent on %s, section version %d", node, servers[0].path, agent.section_version)
    ticking = asyncio.create_task(tick_for_ever(agent))
    stepping = asyncio.create_task(step_jobs_for_ever(agent))
    stopping = asyncio.create_task(stop.wait())
    doctoring = asyncio.create_task(asyncio.to_thread(agent.prepare_modules))
    doctoring.add_done_callback(lambda _: ready(agent))
    await asyncio.wait({ticking, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if ticking.done() and not ticking.cancelled() and ticking.exception() is not None:
        log.error("the loop failed", exc_info=ticking.exception())
    for task in (ticking, stepping, stopping):
        task.cancel()
    for server in servers:
        await server.stop()
    await shut_down(agent)
    return 0 if stop.is_set() else 1


def ready(agent: Agent) -> None:
    """The modules are known: judge what waits for them. From here on the agent only ticks."""
    agent.evaluate("tick")
    give_back_memory()
    asyncio.get_running_loop().call_later(SETTLED_AFTER_S, give_back_memory)


async def tick_for_ever(agent: Agent) -> None:
    """A tick every two seconds on a fixed grid; a late one is counted, missed ones are not made up for.

    An error in a tick is logged and the next tick tries again: an agent that stops ticking is dead to its launchers, which
    then hold the work, and that is right only when ticking really is impossible.
    """
    due_s = monotonic_s()
    while True:
        try:
            agent.tick()
        except Exception:
            log.exception("a tick failed")
        due_s += agent.tick_s
        now_s = monotonic_s()
        agent.tick_late_s = max(0.0, now_s - due_s)
        if now_s >= due_s:
            due_s = now_s
        await asyncio.sleep(max(0.01, due_s - now_s))


async def step_jobs_for_ever(agent: Agent) -> None:
    """Graces and confirmations fall due between ticks."""
    while True:
        await asyncio.sleep(max(JOB_STEP_MIN_S, agent.jobs.next_due_s()))
        try:
            agent.step_jobs()
        except Exception:
            log.exception("a step of the jobs failed")


async def shut_down(agent: Agent) -> None:
    """Stop in order: what runs is stopped within its grace and requeued; nothing is left running without a watch."""
    until_s = monotonic_s() + SHUTDOWN_WITHIN_S
    agent.begin_shutdown()
    while agent.jobs.attempts() and monotonic_s() < until_s:
        agent.jobs.tick(monotonic_s())
        await asyncio.sleep(0.1)
    agent.journal.write("AGENT_STOPPED", {"left": [a.attempt_id for a in agent.jobs.attempts()]})
    agent.journal.close()
