#!/bin/sh
# Without a verdict there is no reward file, which is an error and no zero.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 -I "$here/verify.py" "$here/model.py" "${SOLUTION_DIR:-/app/solution}" "${VERIFIER_DIR:-/logs/verifier}"
