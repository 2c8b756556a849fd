"""Run by test_devices.py in a process of its own: sweeps on however many devices it has."""

import json
import sys

import jax
from made_up import made

import jaxsppl

if __name__ == "__main__":
    target, level, tail = sys.argv[1:]
    grid = {"temperature": [0.5, 1.0, 1.5], "min_p": [0.0, 0.1], "beta": [0.7, 1.0, 2.0]}
    result = jaxsppl.sweep(made(), grid, level=level, tail=tail)
    jaxsppl.save(result, target)
    sys.stdout.write(json.dumps({"devices": len(jax.local_devices())}))
