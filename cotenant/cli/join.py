"""``node join``: make this machine's node part of a fleet with one Prefect server and one store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cotenant.cli.failures import Unreachable
from cotenant.cli.result import OperationResult
from policies.refusal import Refused

if TYPE_CHECKING:
    from cotenant.settings import Settings

__all__ = ["join"]

OUR_POOL_NEEDS = "on the server's machine: cotenant up; then give its address, such as http://10.0.0.2:4200"


def join(in_force: Settings, name: str, server: str, auth: str | None, store_url: str | None) -> OperationResult:
    """Check all that can be checked, then write ``fleet.json`` into the home.

    Raises:
        Refused: a bad name or address, a name that another machine's worker uses, a home whose node has another name.
        Unreachable: the server, or the store.
    """
    from cotenant import fleet
    from cotenant.cli.agents import checked_name, local_nodes
    from cotenant.cli.fleet_file import write
    from cotenant.settings import FLEET_FILE, Settings

    checked_name(name)
    url = _api(server, name)
    mine = local_nodes(in_force.home)
    if mine and name not in mine:
        why = f"this home has the node {', '.join(mine)}, with its journal and certificates"
        raise Refused("NODE_TAKEN", f"node {name!r}", why, f"join as {mine[0]}, or set COTENANT_HOME to a new folder")
    asked: dict[str, Any] = {"node": name, "prefect_api_url": url}
    asked |= {key: value for key, value in (("prefect_auth_string", auth), ("store_url", store_url)) if value}
    found = Settings.from_env(
        {key: value for key, value in os.environ.items() if key != "COTENANT_NODE"}, home=in_force.home, **asked
    )
    if store_url:
        _try_store(found)
    target = found.home / FLEET_FILE
    before = target.read_bytes() if target.exists() else None
    write(target, asked)
    try:
        _try_server(found, name, known_here=name in mine)
        fleet.ensure_queue(url, name)
        fleet.ensure_daily_check(url, name, found.home)
    except BaseException:
        if before is None:
            target.unlink(missing_ok=True)
        else:
            target.write_bytes(before)
        raise
    return OperationResult(
        {"node": name, "server": url, "store": "the fleet's" if store_url else "its own", "file": str(target)},
        view=lambda data: [
            f"node {data['node']} belongs to the fleet of {data['server']}; its store is {data['store']}",
            f"  start its agent and worker: cotenant node run {data['node']}",
        ],
    )


def _api(server: str, name: str) -> str:
    url = server.strip().rstrip("/")
    if "@" in url:
        host = url.rpartition("@")[2] or "10.0.0.2:4200"
        again = f"cotenant node join {name} --server http://{host} --auth-string USER:PASSWORD"
        raise Refused("SERVER_ADDRESS", "--server", "it holds a user or a password, and addresses are shown", again)
    if not url.startswith(("http://", "https://")):
        host = server.strip().rpartition("//")[2] or "10.0.0.2:4200"
        again = f"cotenant node join {name} --server http://{host}"
        raise Refused("SERVER_ADDRESS", f"--server {server!r}", "it is no http:// or https:// address", again)
    return url if url.endswith("/api") else f"{url}/api"


def _try_store(found: Settings) -> None:
    from cotenant.cli.runs import store_engine

    engine = store_engine(found)
    if engine is not None:
        engine.dispose()


def _try_server(found: Settings, name: str, *, known_here: bool) -> None:
    from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

    from cotenant.cli.fleet_link import server_answers
    from cotenant.fleet.deployments import POOL, workers

    url = str(found.api_url)
    if (why := server_answers(url)) is not None:
        raise Unreachable("SERVER_UNREACHABLE", f"Prefect server {url}", why, OUR_POOL_NEEDS)
    try:
        worker = workers(url).get(name) or {}
    except ObjectNotFound:
        raise Refused(
            "FLEET_UNKNOWN", f"Prefect server {url}", f"it has no work pool {POOL!r}", OUR_POOL_NEEDS
        ) from None
    except ValueError:  # no JSON
        why = "what answers there is no Prefect server"
        raise Refused("FLEET_UNKNOWN", f"Prefect server {url}", why, OUR_POOL_NEEDS) from None
    except PrefectHTTPStatusError as error:
        if error.response.status_code != 401:
            raise
        raise Refused(
            "FLEET_DENIED", f"Prefect server {url}", "it did not take the user and password", "give --auth-string"
        ) from error
    if worker.get("worker") == "online" and not known_here:
        raise Refused(
            "NODE_TAKEN",
            f"node {name!r}",
            f"a worker of this name is online (last seen {worker['last_seen']}); two of one name would "
            "take each other's runs",
            "choose another name",
        )
