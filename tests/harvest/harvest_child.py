"""A harvest in its own process, to be killed: arguments are JSON.

`die_at` kills it, with signal 9, a while after that many passages were done.
"""

import json
import os
import signal
import sys
import threading

from harvest_standin import Text

from jaxsppl.harvest.protocol import Progress
from jaxsppl.harvest.runner import harvest


def main() -> None:
    given = json.loads(sys.argv[1])

    def told(state: Progress) -> None:
        print(state.done, flush=True)
        if state.done == given.get("die_at"):
            wait = given.get("die_after_s", 0.0)
            if not wait:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(wait, os.kill, (os.getpid(), signal.SIGKILL)).start()

    harvest(
        [Text(*text) for text in given["texts"]],
        given["url"],
        given["out"],
        dataset="d",
        alternatives=given.get("alternatives", 20),
        progress=told,
    )


if __name__ == "__main__":
    main()
