"""Serves a GGUF file with llama.cpp's own server until stdin is closed; prints the address.

    llama_server.py FILE NAME
"""

import os
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {sys.argv[2]}
params.n_ctx = 8192
params.warmup = False
params.verbosity = 2
# On a busy machine its threads wait for each other in vain.
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
# Its threads need not be waited for.
os._exit(0)
