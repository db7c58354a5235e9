"""``python -m nodes.agent``: the agent's process."""

from __future__ import annotations

import sys
from importlib.util import find_spec

# The agent speaks to its own unix sockets and to no network: asyncio without TLS is a MiB less of memory.
sys.modules["ssl"] = None  # type: ignore[assignment]
# Nor does it need OpenSSL's hashes, which are 4 MiB, where Python has its own: what it hashes are a few files of programs and bundles.
if any(find_spec(name) is not None for name in ("_sha256", "_sha2")):
    sys.modules["_hashlib"] = None  # type: ignore[assignment]

from nodes.agent.process import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
