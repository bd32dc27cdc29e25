"""The process of a trial (`measure.trial`): sets up as `train` does, then takes steps on request.

Requests are lines of JSON on the standard input; when that ends, the process ends at once. Answers go to the original
standard output; all printed text goes to the standard error.

    {"do": "steps", "count": 20}  →  {"answer": {"seconds": 1.93, …}}, or {"failed": "…", "memory": false}
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner_core.tools.measure.process import Crew

_OUT_OF_MEMORY = re.compile(r"(?i)out of (\w+ )?memory|fit into the device's memory|RESOURCE_EXHAUSTED|ALLOC_FAILED")


def main() -> int:
    """Serve requests until there are no more."""
    for number in (signal.SIGINT, signal.SIGHUP):  # sent to the whole group: the parent decides
        signal.signal(number, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    folder = tempfile.mkdtemp(prefix="runner-trial-")
    threading.Thread(target=_read, args=(requests, waiting, folder), daemon=True).start()
    training: Any = None
    crew: Crew | None = None
    while True:
        request = json.loads(waiting.get())
        what = request.pop("do")
        try:
            # loader processes import this module, too
            if what == "start" and (count := _devices(request)) > 1:
                from runner_core.tools.measure.process import Crew

                crew = Crew(count, Path(folder))
            if crew is not None:
                crew.tell(what, request)

            from runner_core.tools.measure.training import Training, gradients, prepared, profiled

            if what in ("start", "prepare"):
                begin: Any = Training.begin if what == "start" else prepared
                training, answer = begin(**request, folder=folder, say=lambda text: _tell(answers, {"say": text}))
            elif what in ("profile", "gradients"):
                answer = (profiled if what == "profile" else gradients)(**request, folder=folder)
            else:
                answer = getattr(training, what)(**request)
            if crew is not None:
                crew.settle()
        except Exception as error:
            from runner_core.base.secrets import without_secrets

            print(without_secrets(traceback.format_exc()), file=sys.stderr)
            _tell(answers, _failure(error if crew is None else crew.failure(error)))
            shutil.rmtree(folder, ignore_errors=True)
            return 1
        _tell(answers, {"answer": answer})


def _devices(request: Mapping[str, Any]) -> int:
    """Return the number of processes that this one starts the training with: 1 if it is one of several itself."""
    settings = {"train.devices": request["base"]["settings"]["train"]["devices"], **request["settings"]}
    return 1 if "RANK" in os.environ else int(settings["train.devices"])


def _read(requests: IO[str], waiting: queue.SimpleQueue[str], folder: str) -> None:
    """Read requests in a thread, so that the process notices its parent's end even during a step.

    `folder` holds temporary files and is removed at the end.
    """
    for line in requests:
        waiting.put(line)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _tell(answers: IO[str], message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _failure(error: Exception) -> dict[str, Any]:
    from runner_core.base.errors import OutOfSpace, RunnerError

    text = str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
    short = isinstance(error, (OutOfSpace, MemoryError)) or getattr(error, "memory", False)
    memory = short or _OUT_OF_MEMORY.search(text) is not None
    return {"failed": text.strip(), "memory": memory}


if __name__ == "__main__":
    raise SystemExit(main())
