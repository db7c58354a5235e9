"""Every code of the timeline and of waiting work: its severity, what it says and what to do.

``docs/codes.md`` is made from this table: ``python -m policies.codes_page``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["CODES", "Code", "Entry", "Severity"]

Severity = Literal["info", "notice", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Code:
    name: str
    severity: Severity
    meaning: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a decision has to say in the journal: a code of the table and its facts (plain JSON values)."""

    code: str
    data: Mapping[str, Any]


_TABLE = (
    Code("AGENT_STARTED", "info", "the agent started"),
    Code(
        "AGENT_STARTING", "info", "the agent has not judged every rule yet: nothing is admitted", "wait a few seconds"
    ),
    Code(
        "AGENT_BLIND",
        "warning",
        "the agent has not looked at the programs for more than two ticks: nothing is admitted or let go",
        "see why its ticks fail: the agent's log; a full or broken disk is the usual cause",
    ),
    Code("AGENT_STOPPED", "info", "the agent stopped in order"),
    Code("AGENT_ADOPTED", "notice", "a restarted agent took over an attempt that was running", "nothing"),
    Code("PROTECTION_CONFIG", "info", "a protection section came into force"),
    Code(
        "PROTECTION_CONFIG_ERROR",
        "error",
        "a protection section was refused: the one in force stays; where that cannot be read any more all fleet work is held",
        "cotenant protection preview NODE FILE",
    ),
    Code("PROTECTION_ACTIVE", "info", "a rule became active"),
    Code("PROTECTION_CLEARED", "info", "a rule is no longer active"),
    Code("PROTECTION_PAUSE", "info", "fleet work was held"),
    Code("PROTECTION_RESUME", "info", "held fleet work goes on"),
    Code("PROTECTION_LOWERED", "info", "fleet work runs in the lowest scheduling class"),
    Code("PROTECTION_RAISED", "info", "fleet work runs in its usual scheduling class again"),
    Code(
        "PROTECTION_LOWER",
        "notice",
        "a program is slowed to its limit: other fleet work is lowered",
        "wait; its figures: cotenant explain NODE",
    ),
    Code(
        "PROTECTION_HARM",
        "warning",
        "a program is slowed to more than twice its limit, or its speed is unknown: other fleet work is held",
        "wait until it runs at its speed again; its figures: cotenant explain NODE",
    ),
    Code("PROTECTION_CALM", "info", "a program runs at its speed: other fleet work runs as usual"),
    Code(
        "PROTECTION_BASELINE",
        "info",
        "a program's speed without fleet work: measured, or fleet work is held for a minute to measure it",
        "wait a minute; where it lasts: cotenant protection sources NODE",
    ),
    Code(
        "PROTECTION_CAP",
        "info",
        "a rule's ceiling on fleet work (cap_fleet) is reached",
        "wait until the rule is no longer active, or raise its cap_fleet",
    ),
    Code(
        "PROTECTION_RESERVE",
        "info",
        "what is left is set aside for a program (reserve)",
        "wait until the rule is no longer active, or reserve less",
    ),
    Code(
        "PROTECTION_EVICT",
        "notice",
        "fleet work was stopped and requeued",
        "nothing: it starts again when it may; why it waits: cotenant explain NODE",
    ),
    Code("PROTECTION_PHASE_ON", "info", "a phase of the protected program began"),
    Code(
        "PROTECTION_PHASE_SOON",
        "info",
        "a phase of the protected program was announced: nothing that it would pause is started",
        "it starts when the phase has come and gone",
    ),
    Code("PROTECTION_PHASE_OFF", "info", "a phase of the protected program ended"),
    Code("PROTECTION_SOURCE_OK", "info", "a source reads"),
    Code(
        "PROTECTION_SOURCE_UNREADABLE",
        "warning",
        "a source cannot be read: it counts as harm, its phase as on",
        "cotenant protection sources NODE",
    ),
    Code(
        "PROTECTION_SOURCE_NEEDS_HELPER",
        "warning",
        "a source lies in a home that the agent's account cannot read",
        "in the login of that account: cotenant session-helper",
    ),
    Code(
        "PROTECTION_UNREADABLE",
        "warning",
        "a process could not be judged; it counts as protected for holding",
        "run the agent under an account that can read the process, or match by a key that it can read",
    ),
    Code(
        "SOURCE_LOOKS_TIMED",
        "warning",
        "a source's lines come on a timer, not per unit of work",
        "count units of work instead, or --accept-timed-source for a demonstration",
    ),
    Code(
        "MEMORY_SOFT",
        "notice",
        "memory is short: no fleet work is admitted",
        "free some memory; what is short: cotenant node show NODE",
    ),
    Code(
        "MEMORY_HARD",
        "warning",
        "memory is very short: the largest fleet job is evicted",
        "free some memory; what is short: cotenant node show NODE",
    ),
    Code(
        "MEMORY_SHORT",
        "info",
        "there is no room for what a job's stage declares (mem_gb)",
        "wait until jobs end, or declare less in the module's manifest",
    ),
    Code(
        "JOB_MEMORY_OVERRUN",
        "warning",
        "an attempt holds more memory than its stage declares: it is the first to be stopped and requeued when memory is short",
        "declare what it takes (mem_gb in the module's manifest), or give it less at once; what it holds: cotenant explain NODE",
    ),
    Code("MEMORY_UNKNOWN", "warning", "memory cannot be read: nothing is admitted", "cotenant node show NODE"),
    Code("MEMORY_CLEAR", "info", "memory is no longer short"),
    Code("JOB_QUEUED", "info", "a job was queued"),
    Code("JOB_WAITING", "info", "a job waits, with its reason"),
    Code(
        "JOB_BACKOFF",
        "info",
        "a job waits before its next attempt, twice as long after each failure without fault of its own",
        "wait; what happened: cotenant job show JOB",
    ),
    Code("JOB_STOPPING", "info", "an attempt is being stopped, within its grace"),
    Code(
        "JOB_CANNOT_HOLD",
        "info",
        "a job cannot start held: its module can neither pause nor be frozen",
        "wait until it may run",
    ),
    Code("JOB_NO_STAGE", "warning", "a job's module no longer has its stage", "cotenant job cancel JOB"),
    Code(
        "JOB_START_FAILED",
        "warning",
        "a job could not be started; it is tried again",
        "free space under the node's home",
    ),
    Code("JOB_NO_SLOT", "info", "as many jobs run as the node has slots", "wait until a job ends"),
    Code(
        "JOB_NO_CORES",
        "info",
        "running jobs declare the node's cores",
        "wait until a job ends, or declare fewer cores in the module's manifest",
    ),
    Code("JOB_ADMITTED", "info", "a job was admitted"),
    Code("JOB_STARTED", "info", "an attempt's runner started"),
    Code("JOB_ENDED", "info", "an attempt ended"),
    Code("JOB_REQUEUED", "info", "a job waits for another attempt"),
    Code("JOB_ADOPTED", "notice", "an attempt goes on under a restarted agent", "nothing"),
    Code("JOB_CANCELLED", "info", "a job was cancelled"),
    Code(
        "JOB_NOT_HELD",
        "warning",
        "an attempt did not come to rest within its deadline: it is stopped and requeued",
        "look why its runner does not pause: cotenant job show JOB",
    ),
    Code(
        "JOB_GPU_UNDECLARED",
        "warning",
        "work whose manifest says that it uses no GPU was seen on one; from now on it counts as work on the GPU",
        'declare its use in the module\'s manifest (gpu = { use = "shared" }), or keep it off the GPU',
    ),
    Code(
        "JOB_UNKILLABLE",
        "error",
        "a process survives SIGKILL; its memory still counts and admission is shut",
        "look what the process waits for (/proc/PID/stack); a restart of the machine ends it",
    ),
    Code(
        "JOB_LAUNCHER_LOST",
        "warning",
        "an attempt's launcher died; what was left of the attempt was ended",
        "nothing: its job is queued again; if it recurs, see what kills it in the system's log",
    ),
    Code("WORKLOAD_STARTED", "info", "a workload was started; it is kept going until it is stopped"),
    Code("WORKLOAD_STOPPED", "info", "a workload was stopped"),
    Code("MODULE_ADDED", "info", "a module's bundle was added to the node"),
    Code(
        "MODULE_NOT_READY",
        "warning",
        "a module's doctor failed or its manifest is broken; its jobs wait",
        "cotenant module doctor MODULE",
    ),
    Code(
        "RUN_LOCKED",
        "info",
        "a run or a sweep measures on the node: nothing else starts there",
        "wait: it starts by itself; what measures: cotenant protection ab status NODE",
    ),
    Code("AGENT_UNREACHABLE", "warning", "the node's agent does not answer", "cotenant node run NODE"),
    Code(
        "FLOW_OUTSIDE_HOURS",
        "info",
        "a flow run has hours of the day, and it is not in them",
        "wait: it starts by itself; other hours: window in the flow run's parameters",
    ),
    Code(
        "FLOW_OTHER_NODE",
        "warning",
        "a flow run is for another node than the queue that it is in",
        "cancel it, and start it in the queue of its node",
    ),
    Code(
        "FLOW_PUT_BACK",
        "notice",
        "a flow run whose process or worker ended is started again, where it was",
        "nothing: it goes on by itself",
    ),
    Code("SWEEP_STARTED", "info", "a duty sweep took the node for all its levels"),
    Code("SWEEP_RELEASED", "info", "a duty sweep gave the node back"),
    Code("RUN_STARTED", "info", "a harness run took the node's run lock"),
    Code("RUN_RESUMED", "notice", "a harness run goes on after a crash", "nothing"),
    Code("RUN_REFERENCE", "info", "the reference rate was measured with the work held"),
    Code("RUN_BLOCK", "info", "a block was measured"),
    Code(
        "RUN_BLOCK_LEFT_OUT",
        "notice",
        "a block was left out and is repeated",
        "nothing: it is repeated; why: cotenant protection ab show RUN",
    ),
    Code(
        "RUN_BLOCK_CUT",
        "warning",
        "a block was cut short: its flow or the agent went away",
        "nothing: the run goes on with the next block once its flow is back",
    ),
    Code("RUN_LOOK", "info", "the blocks so far were judged"),
    Code("RUN_HOLD", "info", "the work under test is held (OFF)"),
    Code("RUN_GRANT", "info", "the work under test may run (ON)"),
    Code("RUN_RELEASED", "info", "hold and grant ended"),
    Code(
        "RUN_HOLDER_GONE",
        "warning",
        "the process that drives the run is gone; hold and grant ended",
        "nothing: the flow resumes the run; or: cotenant protection ab abort RUN",
    ),
    Code(
        "RUN_HOLDER_IDLE",
        "warning",
        "the process that drives the run lives but asked for nothing for 15 minutes; hold and grant ended",
        "nothing: the run goes on when it asks again; or: cotenant protection ab abort RUN, and look at its flow run",
    ),
    Code("RUN_ENDED", "info", "a harness run ended"),
    Code("CERT_ISSUED", "info", "a certificate was kept"),
    Code("CERT_REFUSED", "warning", "an offered certificate was not kept", "why: cotenant protection ab show RUN"),
    Code(
        "CERT_NOT_BOUND",
        "notice",
        "a certificate names some of the program's code by its path or arguments alone, not by its content",
        "measure anew when that code changes, or start the program's own file, or match the process that runs it",
    ),
    Code("CERT_STALE", "warning", "a certificate no longer holds", "cotenant protection certificates NODE"),
    Code("CERT_EXPIRED", "notice", "a certificate expired", "cotenant protection certificates NODE"),
    Code(
        "CERT_REVOKED",
        "warning",
        "certificates were revoked by a run that showed harm",
        "cotenant protection certificates NODE",
    ),
    Code(
        "CERT_FORGED",
        "error",
        "a certificate's digest does not fit its fields; it is not used",
        "earn a new one: cotenant protection ab start NODE --rule RULE",
    ),
    Code(
        "GPU_NOT_CERTIFIED",
        "notice",
        "device work waits: no valid certificate beside the protected program",
        "measure it: cotenant protection ab sweep NODE --rule RULE",
    ),
    Code("GPU_DUTY_START", "info", "the budget started beside the protected work"),
    Code("GPU_DUTY_BASELINE", "info", "device work is held to measure the program without it"),
    Code("GPU_DUTY_GROW", "info", "the budget grew by 0.05 after a clean minute"),
    Code(
        "GPU_DUTY_HALVE",
        "notice",
        "the program slowed to its target: the budget halved",
        "nothing: it grows again after clean minutes",
    ),
    Code(
        "GPU_DUTY_TAKE_BACK",
        "warning",
        "the budget went to 0",
        "nothing: it begins again after five minutes, or when the source reads",
    ),
    Code(
        "GPU_DUTY_CLAMP",
        "notice",
        "the budget fell to a lower certified ceiling",
        "cotenant protection certificates NODE",
    ),
    Code(
        "GPU_DUTY_EXCEEDED",
        "warning",
        "a unit was busier than its duty for three samples",
        "check that the module keeps to its duty (the SDK's Duty does)",
    ),
    Code("GPU_DUTY_UNVERIFIED", "warning", "a unit's device time could not be read: held", "cotenant node show NODE"),
    Code(
        "GPU_METER_DOWN",
        "error",
        "the GPU driver cannot be asked: GPU work is not admitted",
        "where the driver was updated, restart the machine",
    ),
    Code("GPU_METER_UP", "info", "the GPU driver answers again"),
    Code("GPU_MEMORY_SHORT", "info", "GPU work waits: no device has the memory free that it needs", "nvidia-smi"),
    Code(
        "S16_GUARD",
        "error",
        "an action on a process outside the spawn registry was refused",
        "report it: the agent was asked to touch a process that is not its own",
    ),
    Code(
        "JOURNAL_SET_ASIDE",
        "error",
        "the node's state file was gone, or no database any more and is kept under another name; all fleet work is held",
        "set both sections anew: cotenant protection set NODE FILE, and with --fleet the fleet's (an empty FILE: it has none)",
    ),
    Code(
        "JOURNAL_RESTORED",
        "warning",
        "the node's home was put back from a backup; what happened since is not known, so its certificates are stale",
        "measure anew: cotenant protection certificates NODE has the commands",
    ),
    Code(
        "JOURNAL_NUMBERS",
        "info",
        "the entries go on with higher numbers: some that had the next ones may have been lost, after they were copied to the store",
    ),
    Code(
        "JOURNAL_LOST",
        "error",
        "entries could not be written (disk full?); protection goes on",
        "free some space under the node's home",
    ),
)

CODES: dict[str, Code] = {code.name: code for code in _TABLE}
