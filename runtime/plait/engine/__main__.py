"""`python -m plait.engine <sglang flags>`: refuse what cannot be served, then become the stock server.

The check takes well under a second and imports neither torch nor sglang. What passes is replaced by
`python -m sglang.launch_server` with the same flags, in the same process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Check `argv` (stock SGLang flags) against the PLAIT_* settings and the model, then exec the server."""
    flags = list(sys.argv[1:] if argv is None else argv)
    if flags[:1] == ["--"]:
        flags = flags[1:]
    from plait.engine.check import refuse_or_pass

    refuse_or_pass(flags, os.environ)
    os.execv(sys.executable, [sys.executable, "-m", "sglang.launch_server", *flags])


if __name__ == "__main__":
    main()
