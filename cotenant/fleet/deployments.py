"""Pool, queues and deployments on a Prefect server. Each function may be called again: what is there already stays."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_API_URL, temporary_settings

from cotenant.fleet.process import prefect_env
from policies.refusal import Refused

__all__ = ["POOL", "client_of", "deploy", "ensure_pool", "ensure_queue", "queues"]

POOL = "cotenant"
SHARED_QUEUE = "any"
DEPLOY_WITHIN_S = 300.0


class client_of:
    """``with client_of(url) as client``: a client of this API, whatever profile the user has."""

    def __init__(self, url: str) -> None:
        # Whoever uses Prefect otherwise has a key in their profile: it is nothing for this server.
        foreign = {PREFECT_API_KEY, PREFECT_API_AUTH_STRING}
        self._settings = temporary_settings({PREFECT_API_URL: url}, restore_defaults=foreign)

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
        found = client.read_work_queues(work_pool_name=POOL)
    return sorted(queue.name for queue in found if queue.name not in (SHARED_QUEUE, "default"))


def deploy(url: str, root: Path, home: Path | None = None) -> bool:
    """Deploy what ``prefect.yaml`` names, only where it changed or is missing.

    Deploying again could switch schedules on that the owner switched off in the UI, hence the comparison with what was
    deployed last: its digest is the deployment's version on the server.

    Returns:
        True when something was deployed.

    Raises:
        Refused: ``prefect.yaml`` is missing or Prefect refused it; with Prefect's words.
    """
    file = root / "prefect.yaml"
    if not file.is_file():
        raise Refused("DEPLOY_FAILED", str(file), "it is missing", "run the command from a checkout of the project")
    names = [str(entry["name"]) for entry in yaml.safe_load(file.read_text())["deployments"]]
    digest = _digest(root, file)
    if _deployed(url, names) == dict.fromkeys(names, digest):
        return False
    env = prefect_env(home or root / ".cotenant", url) | {"COTENANT_DEPLOY_DIGEST": digest}
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEPLOY_WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise Refused("DEPLOY_FAILED", str(file), words, "set it right and try again")
    return True


def _digest(root: Path, file: Path) -> str:
    """Of everything a deployment on the server is made from: the file and the flows' signatures and texts."""
    content = hashlib.sha256(file.read_bytes())
    for flow in sorted((root / "flows").glob("*.py")):
        content.update(flow.name.encode() + b"\0" + flow.read_bytes())
    return content.hexdigest()[:16]


def _deployed(url: str, names: list[str]) -> dict[str, str]:
    """Digest that each deployment was made from, as its version on the server says."""
    with client_of(url) as client:
        found = client.read_deployments()
    return {entry.name: entry.version or "" for entry in found if entry.name in names}
