#!/usr/bin/env bash
# From a machine with nothing but Python to recommended sampling settings, in demo/.
# Run it again at any time: it does only what is missing. Arguments go to `jaxsppl demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

environment demo .
exec .venv/bin/jaxsppl demo ${1+"$@"}
