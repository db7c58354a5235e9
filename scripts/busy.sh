#!/usr/bin/env bash
# busy.sh COMMAND…: run it beside a competitor pinned to each core, each in a session of its own, so that the scheduler's
# groups give each as much as the command.
set -uo pipefail
competitors=()
trap 'kill "${competitors[@]}" 2>/dev/null' EXIT
for core in $(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))'); do
  setsid taskset -c "$core" python3 -c 'while True: pass' &
  competitors+=($!)
done
"$@"
