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
# What was read before must not change what is said, be it in the last bits.
params.cache_prompt = False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
# Its threads need not be waited for.
os._exit(0)
