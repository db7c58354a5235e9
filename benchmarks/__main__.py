"""Run every benchmark and write ``benchmarks/RESULTS.md``: each figure beside its budget and its reference.

``python -m benchmarks [--quick] [NAME…]``. Each benchmark runs in a process of its own, so that one cannot warm another's caches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT_S = 3600.0


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def one(name: str, quick: bool) -> dict[str, Any]:
    """The benchmark's object, or ``{name, failed: why}``."""
    print(f"== {name}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"name": name, "failed": f"it took longer than {LIMIT_S:.0f} s"}
    lines = done.stdout.strip().splitlines()
    print("\n".join(lines[:-1]), flush=True)
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"name": name, "failed": done.stderr.strip()[-500:] or f"exit status {done.returncode}"}
    return found


def page(results: list[dict[str, Any]], quick: bool) -> str:
    machine = next((r["machine"] for r in results if "machine" in r), None)
    told = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}"
        if machine
        else "unknown"
    )
    lines = [
        "# Results",
        "",
        f"Made by `make bench`{' --quick' if quick else ''} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Machine: {told}.",
        "Compare figures within one run: absolute times belong to the machine.",
    ]
    for result in results:
        lines += ["", f"## {result['name']}", ""]
        if "failed" in result:
            lines.append(f"It failed: {result['failed']}")
            continue
        if result.get("load"):
            lines += [f"Load when it ended: {', '.join(str(value) for value in result['load'])}.", ""]
        lines += ["| what | value | unit | budget | holds | beside it |", "|---|---|---|---|---|---|"]
        for item in result["figures"]:
            value = "unknown" if item["value"] is None else f"{item['value']:.4g}"
            holds = {True: "yes", False: "**no**", None: ""}[item["holds"]]
            cells = (item["what"], value, item["unit"], item["budget"] or "", holds, item["reference"] or "")
            lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(names())}; all when none is named")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(names())
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    results = [one(name, asked.quick) for name in asked.names or names()]
    if not asked.names:
        (HERE / "RESULTS.md").write_text(page(results, asked.quick), encoding="utf-8")
    short = [r["name"] for r in results if "failed" in r or any(f["holds"] is False for f in r["figures"])]
    if short:
        print(f"short of a budget, or failed: {', '.join(short)}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
