"""``python -m nodes.agent``: the agent's process."""

from __future__ import annotations

import sys

# The agent speaks to its own unix sockets and to no network: asyncio without TLS is a MiB less of memory.
sys.modules["ssl"] = None  # type: ignore[assignment]

from nodes.agent.process import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
