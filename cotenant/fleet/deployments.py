"""Pool, queues and deployments on a Prefect server. Each function may be called again: what is there already stays."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    temporary_settings,
)
from prefect.utilities.callables import parameter_schema

from cotenant.settings import Settings
from nodes.client import node_dir
from nodes.worker_admission import SHARED_QUEUE
from nodes.zone import local_zone
from policies.pages import PAGE, pages
from policies.refusal import Refused

__all__ = ["POOL", "client_of", "deploy", "ensure_daily_check", "ensure_pool", "ensure_queue", "queues", "workers"]

POOL = "cotenant"
DAILY_CHECK = "certificate-expiry"
DAILY_CHECK_AT = "10 9 * * *"


class client_of:
    """``with client_of(url) as client``: a client of this API, whatever profile the user has."""

    def __init__(self, url: str) -> None:
        # Whoever uses Prefect otherwise has a key in their profile: it is nothing for this server.
        ours: dict[Any, Any] = {PREFECT_API_URL: url}
        foreign: set[Any] = {PREFECT_API_KEY, PREFECT_API_AUTH_STRING}
        settings = Settings.from_env()
        if settings.prefect_auth_string is not None and settings.api_url == url:
            ours[PREFECT_API_AUTH_STRING] = settings.prefect_auth_string
            foreign.remove(PREFECT_API_AUTH_STRING)
        self._settings = temporary_settings(ours, restore_defaults=foreign)

    def __enter__(self) -> SyncPrefectClient:
        self._settings.__enter__()
        try:
            self._client = get_client(sync_client=True)
            return self._client.__enter__()
        except BaseException as error:
            self._settings.__exit__(type(error), error, None)
            raise

    def __exit__(self, *why: object) -> None:
        try:
            self._client.__exit__(*why)  # type: ignore[arg-type]
        finally:
            self._settings.__exit__(*why)  # type: ignore[arg-type]


def ensure_pool(url: str) -> None:
    """The work pool of all nodes, of type ``cotenant-node``, with the queue that any node may take from."""
    from nodes.worker import NodeWorker

    template = NodeWorker.get_default_base_job_template()
    with client_of(url) as client:
        try:
            client.read_work_pool(POOL)
        except ObjectNotFound:
            pool = WorkPoolCreate(name=POOL, type=NodeWorker.type, base_job_template=template)
            try:
                client.create_work_pool(pool)
            except ObjectAlreadyExists:
                pass  # another command was quicker
    ensure_queue(url, SHARED_QUEUE)


def ensure_queue(url: str, node: str) -> None:
    """The node's own work queue."""
    with client_of(url) as client:
        try:
            client.read_work_queue_by_name(node, work_pool_name=POOL)
        except ObjectNotFound:
            try:
                client.create_work_queue(node, work_pool_name=POOL)
            except ObjectAlreadyExists:
                pass


def queues(url: str) -> list[str]:
    """Names of the nodes that have a queue."""
    with client_of(url) as client:
        found = pages(lambda at: client.read_work_queues(work_pool_name=POOL, limit=PAGE, offset=at))
    return sorted(queue.name for queue in found if queue.name not in (SHARED_QUEUE, "default"))


def workers(url: str) -> dict[str, dict[str, Any]]:
    """Each node that has a queue: ``{worker: online | offline, last_seen}``."""
    with client_of(url) as client:

        def page(at: int) -> list[dict[str, Any]]:
            asked = {"limit": PAGE, "offset": at}
            answer = client.request("POST", "/work_pools/{name}/workers/filter", path_params={"name": POOL}, json=asked)
            return list(answer.json())

        raw = pages(page)
        if (
            len(raw) > PAGE
        ):  # newest heartbeat first: one that came between two pages has moved, and is seen the second time
            raw += pages(page)
    seen = {each["name"]: each for each in raw}
    found = {}
    for name in {*queues(url), *seen}:
        state = str(seen.get(name, {}).get("status") or "OFFLINE").lower()
        found[name] = {"worker": state, "last_seen": seen.get(name, {}).get("last_heartbeat_time")}
    return found


def ensure_daily_check(url: str, node: str, home: Path) -> bool:
    """The node's own daily run of ``certificate-expiry``, made once. One that the owner deletes in the UI stays deleted.

    Returns:
        True when it was made now.
    """
    mark = node_dir(home, node) / "daily-check.json"
    with client_of(url) as client:
        try:
            found = client.read_deployment_by_name(f"{DAILY_CHECK}/{DAILY_CHECK}")
        except ObjectNotFound:
            return False  # a server that an older version deployed to
        if mark.exists() and mark.read_text() == str(found.id):
            return False
        slug = f"daily-{re.sub(r'[^a-z0-9-]+', '-', node.lower())}"
        if not any(each.slug == slug for each in found.schedules):
            schedule = CronSchedule(cron=DAILY_CHECK_AT, timezone=str(local_zone()))
            made = DeploymentScheduleCreate(schedule=schedule, active=True, slug=slug, parameters={"node": node})
            client.create_deployment_schedules(found.id, [made])
    mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    mark.write_text(str(found.id))
    return True


def deploy(url: str, root: Path) -> bool:
    """Deploy what ``prefect.yaml`` names, only where it changed or is missing.

    A deployment that is there is changed in place, and of what it has only what the file says: schedules and pauses belong
    to the owner, who sets them in the UI. Those of the file are made with a new deployment, and never again. What was
    deployed last is known by its digest, which is the deployment's version on the server.

    Returns:
        True when something was deployed.

    Raises:
        Refused: ``prefect.yaml`` is missing, or a flow of it cannot be loaded.
    """
    file = root / "prefect.yaml"
    if not file.is_file():
        raise Refused("DEPLOY_FAILED", str(file), "it is missing", "run the command from a checkout of the project")
    entries = yaml.safe_load(file.read_text())["deployments"]
    digest = _digest(root, file)
    if _deployed(url, [str(entry["name"]) for entry in entries]) == {str(each["name"]): digest for each in entries}:
        return False
    flows = [_load(root, entry) for entry in entries]  # all of them before any is written
    with client_of(url) as client:
        for entry, flow in zip(entries, flows, strict=True):
            _deploy_one(client, entry, flow, digest)
    return True


def _load(root: Path, entry: Mapping[str, Any]) -> Flow[..., Any]:
    path, _, name = str(entry["entrypoint"]).rpartition(":")
    try:
        return load_flow_from_entrypoint(f"{root / path}:{name}", use_placeholder_flow=False)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise Refused("DEPLOY_FAILED", f"flow {entry['entrypoint']}", why, "set it right and try again") from error


def _deploy_one(client: SyncPrefectClient, entry: Mapping[str, Any], flow: Flow[..., Any], digest: str) -> None:
    pool = entry.get("work_pool") or {}
    told: dict[str, Any] = {
        "version": digest,
        "description": entry.get("description"),
        "tags": list(entry.get("tags") or []),
        "parameters": dict(entry.get("parameters") or {}),
        "entrypoint": str(entry["entrypoint"]),
        "work_pool_name": pool.get("name", POOL),
        "work_queue_name": pool.get("work_queue_name", SHARED_QUEUE),
        "job_variables": dict(pool.get("job_variables") or {}),
        "enforce_parameter_schema": bool(entry.get("enforce_parameter_schema", True)),
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
    }
    try:
        known = client.read_deployment_by_name(f"{flow.name}/{entry['name']}")
    except ObjectNotFound:
        schedules = [_schedule(each) for each in entry.get("schedules") or []]
        client.create_deployment(
            flow_id=client.create_flow_from_name(flow.name), name=str(entry["name"]), schedules=schedules, **told
        )
        return
    client.update_deployment(known.id, DeploymentUpdate(**told))


def _schedule(raw: Mapping[str, Any]) -> DeploymentScheduleCreate:
    cron = CronSchedule(cron=str(raw["cron"]), timezone=raw.get("timezone"))
    return DeploymentScheduleCreate(schedule=cron, active=bool(raw.get("active", True)))


def _digest(root: Path, file: Path) -> str:
    """Of everything a deployment on the server is made from: the file and the flows' signatures and texts."""
    content = hashlib.sha256(file.read_bytes())
    for flow in sorted((root / "flows").glob("*.py")):
        content.update(flow.name.encode() + b"\0" + flow.read_bytes())
    return content.hexdigest()[:16]


def _deployed(url: str, names: list[str]) -> dict[str, str]:
    """Digest that each deployment was made from, as its version on the server says."""
    with client_of(url) as client:
        found = pages(lambda at: client.read_deployments(limit=PAGE, offset=at))
    return {entry.name: entry.version or "" for entry in found if entry.name in names}
