#!/usr/bin/env bash
# Make the environment in the folder given: locked versions, then the project itself, editable.
# uv where it is on PATH (faster), else python3's own venv and pip.
set -euo pipefail
venv=${1:?usage: scripts/setup.sh VENV}
python=${PYTHON:-python3}

fail() { echo "setup: $1" >&2; exit 2; }

if ! command -v "$python" >/dev/null; then
  fail "there is no '$python' on PATH; install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3.12"
fi
version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  fail "$python is Python $version, and 3.11 or newer is needed; name another one: make setup PYTHON=python3.12"
fi

echo "setup: installing into $venv; the first time that takes minutes"
if command -v uv >/dev/null; then
  [ -x "$venv/bin/python" ] || uv venv --quiet --python "$(command -v "$python")" "$venv"
  uv pip install --quiet --python "$venv/bin/python" -r requirements.lock
  uv pip install --quiet --python "$venv/bin/python" --no-deps -e .
else
  if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    fail "$python $version has no venv module (on Debian and Ubuntu: apt install python${version%.*}-venv)"
  fi
  [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv "$venv"
  export PIP_DISABLE_PIP_VERSION_CHECK=1
  # pip warns when root installs; into a venv of its own that is what is wanted.
  export PIP_ROOT_USER_ACTION=ignore
  "$venv/bin/python" -m pip install --quiet -r requirements.lock
  "$venv/bin/python" -m pip install --quiet --no-deps -e .
fi
"$venv/bin/python" -m cotenant.fleet.template
echo "setup: $venv is ready (Python $version)"
