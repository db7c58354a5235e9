"""The conformance kit: what a module promises, checked as the agent would run it.

Source: ``governor.md`` ("Conformance kit"), ``runner-protocol.md``.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from cotenant.conform.check import Check
from cotenant.conform.control import check_control
from cotenant.conform.duty import check_duty
from cotenant.conform.goldens import Golden, GoldenError, difference, digest, read_goldens
from cotenant.conform.host import probe
from cotenant.conform.running import Bench, Run
from cotenant.conform.specs import DutySpec, SpecError, read_specs
from nodes.modules import MANIFEST, ModuleState
from policies.manifest import Manifest, ManifestError, parse_manifest
from policies.refusal import Refused

__all__ = ["PARTS", "conform"]

GOLDEN_LIMIT_S = 300.0
LONGER = "another-length-of-path-" + "x" * 80
NAMED = 3


PARTS = frozenset({"golden", "control", "duty"})


def conform(bundle: Path, parts: Collection[str] = PARTS) -> Iterator[Check]:
    """Check the module in ``bundle``; each check as it is done. Blocks, for about a minute in all.

    Args:
        parts: manifest, meter and doctor are always checked; "golden" compares results, "control" pauses and stops,
            "duty" measures the duty specs.

    Raises:
        Refused: it is no folder with a manifest, or cannot be a bundle.
        OSError: the checks themselves cannot be run here.
    """
    bundle = Path(bundle)
    if not (bundle / MANIFEST).is_file():
        why = "is no folder" if not bundle.is_dir() else f"holds no {MANIFEST}"
        raise Refused("CONFORM_NO_MODULE", f"module {bundle}", why, "name the folder that holds the module's manifest")
    try:
        manifest = parse_manifest((bundle / MANIFEST).read_text(encoding="utf-8"))
    except (ManifestError, UnicodeDecodeError) as error:
        yield Check("manifest", "FAIL", str(error))
        yield Check("everything else", "skip", "without a manifest nothing can be run")
        return
    stages = ", ".join(stage.name for stage in manifest.stages)
    yield Check("manifest", "ok", f"{manifest.module.id} {manifest.module.version}; stages {stages}")
    with tempfile.TemporaryDirectory(prefix="cotenant-conform-") as folder:
        kit = _Kit(Bench(Path(folder)), bundle, manifest, frozenset(parts))
        try:
            yield from kit.checks()
        finally:
            for run in kit.runs:
                run.remove()


class _Kit:
    def __init__(self, bench: Bench, bundle: Path, manifest: Manifest, parts: frozenset[str]) -> None:
        self.parts = parts
        self.bench = bench
        self.bundle = bundle
        self.manifest = manifest
        self.runs: list[Run] = []
        self.specs: list[DutySpec] = []

    def checks(self) -> Iterator[Check]:
        self.host = probe()
        verdict, said = self.host.meter
        yield Check("meter", verdict, f"{said}; this host gives {self.host.share:.2f} of a core")
        module = self.bench.add(self.bundle)
        doctor = self._doctor(module)
        yield doctor
        if module.state != "ready":
            yield Check("everything else", "skip", "the agent starts no job of a module that is not ready")
            return
        if "golden" in self.parts:
            yield from self._goldens(module)
        try:
            self.specs = read_specs(self.bundle, self.manifest)
        except SpecError as error:
            yield Check("conformance.json", "FAIL", str(error))
        if "control" in self.parts:
            yield from self._control(module)
        yield self._writes()
        yield self._detach()
        yield self._truth()
        if "duty" in self.parts:
            yield from self._duties(module)

    # -- doctor ---------------------------------------------------------------------------------------------------------

    def _doctor(self, module: ModuleState) -> Check:
        report = module.doctor
        if report is None:
            return Check("doctor", "FAIL", module.why or "it did not run")
        if report.health != "healthy":
            return Check("doctor", "FAIL", report.why or f"it says {report.health}")
        bad = [str(check.get("name")) for check in report.checks if check.get("ok") is not True]
        if bad:
            return Check("doctor", "FAIL", f"it says healthy, and of its checks {', '.join(bad)} is not ok")
        if set(report.capabilities) != set(self.manifest.capabilities):
            told, declared = sorted(report.capabilities), sorted(self.manifest.capabilities)
            return Check("doctor", "FAIL", f"it says capabilities {told}, the manifest {declared}")
        return Check("doctor", "ok", f"healthy, {len(report.checks)} check(s)")

    def _truth(self) -> Check:
        """A healthy doctor and a runner that finds its node unfit cannot both be right."""
        for run in self.runs:
            told, left = run.ended or {}, run.outcome()
            fault = (left.failure_document or {}).get("fault")
            if told.get("exit_code") in (3, 127) or fault == "host":
                why = (left.failure_document or {}).get("detail") or run.last_words()
                return Check(
                    "doctor-truth", "FAIL", f"the doctor says healthy, the runner of {run.attempt.stage}: {why}"
                )
        if not self.runs:
            return Check("doctor-truth", "skip", "nothing was run")
        return Check("doctor-truth", "ok", f"{len(self.runs)} run(s) found the node as the doctor says")

    # -- goldens --------------------------------------------------------------------------------------------------------

    def _goldens(self, module: ModuleState) -> Iterator[Check]:
        try:
            goldens = read_goldens(self.bundle, self.manifest)
        except GoldenError as error:
            yield Check("golden", "FAIL", str(error))
            return
        for stage in self.manifest.stages:
            found = [golden for golden in goldens if golden.stage == stage.name]
            if stage.determinism == "none" and not found:
                yield Check(f"golden {stage.name}", "skip", 'its determinism is "none"')
            elif not found:
                why = f'its determinism is "{stage.determinism}" and no fixture of [goldens] is for it'
                yield Check(f"golden {stage.name}", "FAIL", why)
            for golden in found:
                yield from self._golden(module, golden, exact=stage.determinism == "exact")

    def _golden(self, module: ModuleState, golden: Golden, *, exact: bool) -> Iterator[Check]:
        name = f"golden {golden.name}"
        first, why = self._result(module, golden, {}, "jobs", watched=True)
        if first is None:
            yield Check(name, "FAIL", why)
            return
        apart = difference(golden.result, first, self.manifest, exact=exact)
        told = digest(first, self.manifest)[:16]
        yield Check(name, "FAIL" if apart else "ok", apart or f"compares, digest {told}")
        language = _another_locale()
        env = {"LANG": language, "LC_ALL": language, "TZ": "Asia/Kolkata"}
        again, why = self._result(module, golden, env, LONGER, watched=False)
        name = f"golden-again {golden.name}"
        where = f"in locale {language}, a path {len(LONGER) - len('jobs')} characters longer"
        if again is None:
            yield Check(name, "FAIL", f"{where}: {why}")
        elif exact:
            other = digest(again, self.manifest)[:16]
            same = other == told
            yield Check(name, "ok" if same else "FAIL", f"{where}: digest {other}" + ("" if same else f", not {told}"))
        else:
            apart = difference(first, again, self.manifest, exact=False)
            yield Check(name, "FAIL" if apart else "ok", f"{where}: {apart or 'compares'}")

    def _result(
        self, module: ModuleState, golden: Golden, env: dict[str, str], place: str, *, watched: bool
    ) -> tuple[dict[str, object] | None, str]:
        """The payload of a run's result, or why there is none."""
        run = self.bench.start(module, golden.stage, golden.payload, place=place, env=env, watched=watched)
        self.runs.append(run)
        limit_s = GOLDEN_LIMIT_S / self.host.share
        try:
            run.until(lambda: run.ended is not None, limit_s)
            in_time = run.ended is not None
        finally:
            run.finish()
        if not in_time:
            return None, f"no result within {limit_s:.0f} s"
        told, left = run.ended or {}, run.outcome()
        if told.get("exit_code") != 0 or left.result is None:
            how = f"signal {told['signal']}" if told.get("signal") else f"exit {told.get('exit_code')}"
            detail = (left.failure_document or {}).get("detail") or left.why or ""
            return None, f"{how}: {detail} {run.last_words()}".strip()
        payload = left.result.get("payload")
        if not isinstance(payload, dict):
            return None, "the result's payload is no object"
        return payload, ""

    # -- control --------------------------------------------------------------------------------------------------------

    def _control(self, module: ModuleState) -> Iterator[Check]:
        for stage in self.manifest.stages:
            spec = next((spec for spec in self.specs if spec.stage == stage.name), None)
            if spec is None:
                why = "conformance.json has no task of this stage that runs long enough"
                yield Check(f"stop-acknowledged {stage.name}", "skip", why)
                continue
            yield from check_control(self.bench, module, stage.name, spec.payload, self.runs)

    # -- what runs leave ------------------------------------------------------------------------------------------------

    def _writes(self) -> Check:
        watches = [run.watch for run in self.runs if run.watch is not None]
        outside = list(dict.fromkeys(item for watch in watches for item in watch.outside))
        if outside:
            more = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
            return Check("writes", "FAIL", f"outside its folders: {'; '.join(outside[:NAMED])}{more}")
        unwatched = next((watch.unwatched for watch in watches if watch.unwatched is not None), None)
        if not watches or unwatched is not None:
            return Check("writes", "skip", f"its file writes could not be seen: {unwatched or 'nothing was run'}")
        calls = sum(watch.calls for watch in watches)
        return Check("writes", "ok", f"{calls} calls that change files in {len(watches)} run(s), all in its folders")

    def _detach(self) -> Check:
        if not self.runs:
            return Check("detach", "skip", "nothing was run")
        left = [f"{name} outlived its runner" for run in self.runs for name in run.left]
        apart = [f"{name} is in another session" for run in self.runs for name in sorted(run.sessions)]
        began = [item for run in self.runs if run.watch is not None for item in run.watch.detached]
        found = [*began, *left, *apart]
        if found:
            return Check("detach", "FAIL", "; ".join(found[:NAMED]))
        return Check("detach", "ok", f"no process outlived its runner or left its session in {len(self.runs)} run(s)")

    # -- duty -----------------------------------------------------------------------------------------------------------

    def _duties(self, module: ModuleState) -> Iterator[Check]:
        throttles = "cooperative_throttle" in self.manifest.capabilities
        if not throttles:
            yield Check("duty", "skip", "it does not declare cooperative_throttle")
            return
        if not self.specs:
            yield Check(
                "duty", "FAIL", "it declares cooperative_throttle and conformance.json has no duty spec to show it"
            )
        for spec in self.specs:
            yield from check_duty(self.bench, module, spec)


def _another_locale() -> str:
    """An installed locale that differs from the agent's in more than its name, where there is one."""
    try:
        done = subprocess.run(["locale", "-a"], capture_output=True, text=True, timeout=30, check=False)
        there = done.stdout.split()
    except (OSError, subprocess.SubprocessError):
        there = []
    wanted = ("tr_TR", "de_DE", "fr_FR", "ja_JP")
    return next((name for start in wanted for name in there if name.startswith(start)), "POSIX")
