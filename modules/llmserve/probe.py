"""A child that loads a model and decodes one token: what kills it would have killed the runner. Exit 0, or 2 with the reason."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def main(path: str) -> int:
    from backend_llamacpp import BackendFailed, LlamaBackend
    from batching import BadPrompt
    from gguf import BadModel
    from prompts import parse

    one = {"prompt": "a", "raw": True, "max_tokens": 1}
    request = parse({"prompts": [one], "model": "probe", "backend": "llamacpp", "width": 1})
    try:
        backend = LlamaBackend(request, path, threads=1)
        tokens = backend.encode(request.prompts[0])
        backend.open([])
        backend.start(0, tokens or [0], request.prompts[0].sampling)
        backend.step(len(tokens) or 1)
        backend.close()
    except (BadModel, BackendFailed, BadPrompt) as error:
        print(error)
        return 2
    except Exception as error:  # not the file's fault, or not known to be: tried again, and said
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
