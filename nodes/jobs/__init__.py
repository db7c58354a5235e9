"""Jobs on a node: the spawn registry, the ladder, the launcher."""

from nodes.jobs.attempt import Attempt
from nodes.jobs.manager import JobManager
from nodes.jobs.registry import Job
from nodes.jobs.workloads import Workloads

__all__ = ["Attempt", "Job", "JobManager", "Workloads"]
