"""Prints where this Python keeps things. Imports neither torch nor anything else that is slow."""
import importlib.util
import json
import os
import sys
import sysconfig

try:
    spec = importlib.util.find_spec("torch")
except (ImportError, ValueError):
    spec = None
include = sysconfig.get_paths().get("include") or ""
print(json.dumps({
    "executable": sys.executable,
    "version": "%d.%d.%d" % sys.version_info[:3],
    "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    "path": [entry for entry in sys.path if os.path.isdir(entry)],
    "include": include if os.path.isfile(os.path.join(include, "Python.h")) else None,
    "torch": os.path.dirname(spec.origin) if spec is not None and spec.origin else None,
}))
