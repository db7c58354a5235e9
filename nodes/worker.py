"""Prefect worker type ``cotenant-node``: takes the flow runs of one node's queue, each a process at idle priority.

What it adds to Prefect's process worker:

* A run that the node's agent does not admit (a window is being counted), or while no agent answers, waits as
  ``AwaitingNode`` with the reason, and is asked about again later. The server turns only "Scheduled" into "Late".
* Flow code is this node's own checkout (``COTENANT_ROOT``), never what the deploying machine had.
* A run whose process is gone while it should run (killed, the worker stopped, the machine rebooted) is put back, where
  the deployment says that it can go on (``resumable``). Which process a run has is written down with its identity.
* A batch of prompts whose flow run ended for want of its agent, its store or its process goes on, with growing waits.

The flows of this pool have no ``on_cancellation`` and ``on_crashed`` hooks: this worker does not run any.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.runner._flow_run_executor import FlowRunExecutionResult, FlowRunExecutorContext
from prefect.runner._process_manager import ProcessHandle
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.states import Failed
from prefect.utilities.processutils import command_to_string, get_sys_executable
from prefect.workers.process import ProcessJobConfiguration, ProcessVariables, ProcessWorker, ProcessWorkerResult
from pydantic import Field

from cotenant.settings import Settings
from nodes.client import AgentClient, AgentUnreachable, node_dir, socket_path
from nodes.flow_processes import FlowProcesses, lower_priority
from nodes.mirror import Mirror
from nodes.worker_admission import SHARED_QUEUE, no_such_node, outside_hours, unknown_parameters, was_reviewed
from nodes.worker_batches import WorkerBatches
from nodes.worker_execution import NoHooks, PutBackProposer, Started
from nodes.worker_states import RunStates
from nodes.worker_sweep import Sweep
from policies.refusal import Refused
from policies.views import Reason

if TYPE_CHECKING:
    from prefect.client.schemas.objects import Flow, FlowRun
    from prefect.client.schemas.responses import WorkerFlowRunResponse

__all__ = ["NodeJobConfiguration", "NodeVariables", "NodeWorker"]

DEFER_S = 15.0
MAX_DEFER_S = 120.0
SWEEP_EVERY_S = 20.0
ADMIT_TIMEOUT_S = 5.0
STOP_WITHIN_S = 10.0


class NodeJobConfiguration(ProcessJobConfiguration):
    # A flow process that writes to its worker's pipe dies with the worker; its log goes to the server anyway.
    stream_output: bool = Field(default=False)
    resumable: bool = Field(default=False)


class NodeVariables(ProcessVariables):
    stream_output: bool = Field(
        default=False,
        title="Stream output",
        description="Copy what the flow process prints to the worker's output. A run then ends with its worker.",
    )
    resumable: bool = Field(
        default=False,
        title="Resumable",
        description="The flow goes on where it was: a run whose process was killed is put back, at most three times in a row.",
    )


class NodeWorker(ProcessWorker):
    """One node's worker. Node and home come from ``COTENANT_NODE`` and ``COTENANT_HOME``."""

    type = "cotenant-node"
    job_configuration = NodeJobConfiguration
    job_configuration_variables = NodeVariables  # type: ignore[assignment]  # the base says None
    _display_name = "Cotenant node"
    _description = "Run flows on one node, only when the node's agent admits them."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings.from_env()
        self.settings = settings
        self.node = settings.node
        self.checkout = Path(os.environ.get("COTENANT_ROOT") or Path(__file__).parents[1]).resolve()
        self.agent = AgentClient(socket_path(settings.home, self.node))
        self.processes = FlowProcesses(node_dir(settings.home, self.node) / "flows")
        self.mirror = Mirror(
            self.agent, settings.store, self.node, mark=node_dir(settings.home, self.node) / "mirror.json"
        )
        batches = WorkerBatches(self.agent, settings.store, self.node)
        self.states = RunStates(self.node, batches)
        self._held: set[UUID] = set()
        self._cancelled: set[UUID] = set()
        self.sweeper = Sweep(
            self.node,
            self.agent,
            processes=self.processes,
            batches=batches,
            states=self.states,
            held=self._held,
            ended=self._cancelled,
        )
        self._flow_names: dict[UUID, str] = {}
        self._nodes_known: set[str] = set()
        self._sweep_scope: anyio.CancelScope | None = None

    # -- lifetime ----------------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        await super().setup()
        self.mirror.start()
        if self._runs_task_group is not None:
            self._runs_task_group.start_soon(self._sweep_forever)

    async def teardown(self, *exc_info: Any) -> None:
        if self._sweep_scope is not None:
            self._sweep_scope.cancel()
        await anyio.to_thread.run_sync(self.mirror.stop)
        await super().teardown(*exc_info)

    # -- admission ---------------------------------------------------------------------------------------------------

    async def _get_scheduled_flow_runs(self) -> list[WorkerFlowRunResponse]:
        """The shared queue holds runs for any node; each worker takes those whose ``node`` is its own."""
        mine = []
        for entry in await super()._get_scheduled_flow_runs():
            if entry.flow_run.work_queue_name != SHARED_QUEUE or self._is_for_us(entry.flow_run):
                mine.append(entry)
            else:
                await self._refuse_unknown_node(entry.flow_run)
        return mine

    async def _refuse_unknown_node(self, flow_run: FlowRun) -> None:
        """A run for a node that nobody is would wait in the shared queue for ever. One that is away has its own queue."""
        wanted = str(flow_run.parameters["node"])
        if wanted in self._nodes_known:
            return
        try:
            if await self._has_queue(wanted):
                self._nodes_known.add(wanted)
                return
            known = [queue.name for queue in await self.client.read_work_queues(work_pool_name=self._work_pool_name)]
            why = no_such_node(wanted, set(known) - {SHARED_QUEUE, "default"})
            await self.client.set_flow_run_state(flow_run.id, Failed(name="Refused", message=why))
        except Exception:  # the runs that came with it are taken all the same
            self.get_flow_run_logger(flow_run).exception("Could not look for node %r", wanted)

    async def _has_queue(self, node: str) -> bool:
        if not node:
            return False
        try:
            await self.client.read_work_queue_by_name(node, work_pool_name=self._work_pool_name)
        except ObjectNotFound:
            return False
        return True

    def _is_for_us(self, flow_run: FlowRun) -> bool:
        return bool(flow_run.parameters.get("node", self.node) == self.node)

    async def _propose_pending_state(self, flow_run: FlowRun) -> bool:
        """Prefect's step before a run becomes Pending; a run that the node does not take now never gets there."""
        refused = await self._refusal(flow_run)
        if refused is None:
            return await super()._propose_pending_state(flow_run)
        why, wait_s = refused
        try:
            await self.states.defer(self.client, flow_run.id, why, wait_s)
        except Exception:
            self.get_flow_run_logger(flow_run).exception("Could not put flow run '%s' off", flow_run.id)
        return False

    async def _refusal(self, flow_run: FlowRun) -> tuple[Reason, float] | None:
        """Why the run has to wait and for how many seconds, or None."""
        if not self._is_for_us(flow_run):
            wanted = flow_run.parameters["node"]
            return Reason(
                "FLOW_OTHER_NODE", f"it asks for node {wanted!r} but is in the queue of {self.node!r}"
            ), MAX_DEFER_S
        if (outside := outside_hours(flow_run.parameters, was_reviewed(flow_run), datetime.now(UTC))) is not None:
            return outside
        try:
            name = await self._flow_name(flow_run)
            ask = {"flow": name, "parameters": flow_run.parameters}
            await anyio.to_thread.run_sync(
                lambda: self.agent.call("admit_flow", _timeout_s=ADMIT_TIMEOUT_S, **ask), abandon_on_cancel=True
            )
        except AgentUnreachable as gone:
            return Reason("AGENT_UNREACHABLE", str(gone)), DEFER_S
        except Refused as refusal:
            left = refusal.data.get("left_s")
            wait_s = float(left) if isinstance(left, (int, float)) else DEFER_S
            return Reason(refusal.code, refusal.why, refusal.remedy), min(max(wait_s, 5.0), MAX_DEFER_S)
        return None

    async def _flow_name(self, flow_run: FlowRun) -> str:
        if flow_run.flow_id not in self._flow_names:
            flow: Flow = await self.client.read_flow(flow_run.flow_id)
            self._flow_names[flow_run.flow_id] = flow.name
        return self._flow_names[flow_run.flow_id]

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Start the flow's process, wait for it, and put the run back where it can go on."""
        status: anyio.abc.TaskStatus[int] = task_status or anyio.TASK_STATUS_IGNORED
        self._held.add(flow_run.id)
        # Until the server knows that the process is over, its note tells the next sweep, of this worker or the next one.
        told = False
        try:
            entrypoint = await self._entrypoint(flow_run)
            if entrypoint is None:
                status.started(None)  # type: ignore[arg-type]  # no process, so no infrastructure id
                result = ProcessWorkerResult(status_code=0, identifier="none")
            else:
                result = await self._run_process(flow_run, configuration, entrypoint, status)
            told = True
            return result
        except anyio.get_cancelled_exc_class():
            # The worker is stopping and has killed the process: without this the run would stay Running for ever.
            with anyio.CancelScope(shield=True):
                told = await self._put_back_on_stop(flow_run)
            raise
        finally:
            self._held.discard(flow_run.id)
            self._cancelled.discard(flow_run.id)
            if told:
                self.processes.forget(flow_run.id)

    async def _entrypoint(self, flow_run: FlowRun) -> str | None:
        """The flow's file in this node's checkout; a run whose file is missing fails here, saying which."""
        deployment = await self.client.read_deployment(flow_run.deployment_id) if flow_run.deployment_id else None
        if deployment is not None and (why := unknown_parameters(deployment, flow_run.parameters)) is not None:
            await self.client.set_flow_run_state(flow_run.id, Failed(name="Refused", message=why), force=True)
            return None
        entrypoint = deployment.entrypoint if deployment is not None else None
        file = (entrypoint or "").rsplit(":", 1)[0]
        if entrypoint and (self.checkout / file).is_file():
            return entrypoint
        missing = (
            f"the flow's file {file or '(none given)'} is not in this node's checkout {self.checkout}: update that"
        )
        await self.client.set_flow_run_state(flow_run.id, Failed(message=f"{self.node}: {missing}"), force=True)
        self.get_flow_run_logger(flow_run).error(missing)
        return None

    async def _run_process(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        entrypoint: str,
        status: anyio.abc.TaskStatus[int],
    ) -> ProcessWorkerResult:
        resumable = getattr(configuration, "resumable", False)
        execution: FlowRunExecutionResult | None = None
        async with FlowRunExecutorContext() as context:
            proposer = PutBackProposer(self.states.put_back, context.client, resumable)
            context._state_proposer = proposer
            starter = EngineCommandStarter(
                command=command_to_string([get_sys_executable(), "-m", "prefect.engine"]),
                cwd=self.checkout,
                entrypoint=entrypoint,
                env={**os.environ, **configuration.env},
                stream_output=configuration.stream_output,
                control_channel=context.control_channel,
                isolate_process_group=True,
                env_overrides_settings=True,
            )
            executor = context.create_executor(flow_run, starter, propose_submitting=False, hook_runner=NoHooks())

            async def execute(*, task_status: anyio.abc.TaskStatus[ProcessHandle | None]) -> None:
                nonlocal execution
                started = Started(task_status)
                execution = await executor.submit(task_status=started)
                if not started.reported:
                    task_status.started(None)

            async with anyio.create_task_group() as group:
                handle: ProcessHandle | None = await group.start(execute)
                pid = handle.pid if handle is not None else None
                if pid is not None:
                    self.processes.remember(flow_run.id, pid)
                    lower_priority(pid, os.environ.get("COTENANT_FLOW_PRIORITY", "idle"))
                    proposer.handle = handle
                status.started(pid)  # type: ignore[arg-type]
        # Prefect's worker would set what ended with a status as crashed, whatever was decided here.
        if execution is None or proposer.did_put_back or await self._settle(flow_run, resumable):
            return ProcessWorkerResult(status_code=0, identifier=str(pid))
        return ProcessWorkerResult(status_code=execution.status_code or 0, identifier=str(pid))

    async def _settle(self, flow_run: FlowRun, resumable: bool) -> bool:
        """What Prefect's executor leaves open: a cancelled run that this worker ended, a run ended by SIGTERM, an end that
        nobody could report as the server was away. Whether its state was set here."""
        now = await self.client.read_flow_run(flow_run.id)
        if now.state is None:
            return False
        if flow_run.id in self._cancelled or now.state.is_cancelling():
            if not now.state.is_cancelled():
                await self.states.cancelled(self.client, flow_run.id)
            return True
        if resumable and now.state.is_crashed():
            # A process that was ended by SIGTERM reports itself as crashed.
            return await self.states.put_back(self.client, flow_run.id, "its process was ended")
        if now.state.is_running() and not self.processes.lives(flow_run.id):
            await self.states.lost(self.client, now, "its process ended while nobody could tell the server")
            return True
        return False

    async def _put_back_on_stop(self, flow_run: FlowRun) -> bool:
        """Whether the server knows that the run has no process any more."""
        try:
            with anyio.fail_after(STOP_WITHIN_S):
                # The worker's own client may be closed already.
                async with get_client() as client:
                    now = await client.read_flow_run(flow_run.id)
                    if now.state is not None and not now.state.is_final() and not now.state.is_cancelling():
                        await self.states.defer(client, now.id, Reason("FLOW_PUT_BACK", "the worker stopped"), 0.0)
        except Exception as error:
            self._logger.warning("Flow run '%s' was not put back, the next worker does it: %r", flow_run.id, error)
            return False
        return True

    # -- sweeping ----------------------------------------------------------------------------------------------------

    async def _sweep_forever(self) -> None:
        with anyio.CancelScope() as self._sweep_scope:
            while True:
                try:
                    await self.sweep()
                except Exception as error:
                    self._logger.warning(
                        "The look for lost runs failed (tried again in %g s): %s", SWEEP_EVERY_S, error
                    )
                await anyio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Runs and batches that nobody works on any more (``nodes.worker_sweep``)."""
        await self.sweeper.whole(self.client, self._work_pool_name, self._submitting_flow_run_ids)
