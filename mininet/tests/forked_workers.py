"""Workers of a training in the namespaces of a network, forked from one process that has loaded PyTorch.

Loading PyTorch in four processes would take most of the time of such a test. The process reads one line of JSON for
each training, {"argv": [...], "workers": [{"pid": a process in the namespace, "environment": {...}}, ...]}, and answers
with a line of exit codes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from wiresum_lab.demos.digits import train

CLONE_NEWNET = 0x40000000


def work(argv: list[str], worker: dict[str, Any]) -> None:
    """Runs in the child: enters the namespace and trains."""
    code = 1
    try:
        if worker["pid"]:
            with Path(f"/proc/{worker['pid']}/ns/net").open() as namespace:
                assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
        os.environ.update(worker["environment"])
        sys.argv = ["train.py", *argv]
        train.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def main() -> None:
    torch.use_deterministic_algorithms(True)  # loads the rest of PyTorch, which `import torch` does not
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for worker in request["workers"]:
            if not (child := os.fork()):
                work(request["argv"], worker)
            children.append(child)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


if __name__ == "__main__":
    main()
