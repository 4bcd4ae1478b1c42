"""Runs llama.cpp's own HTTP server from the `xllamacpp` package until its standard input ends.

usage: serve_llama.py MODEL.gguf [API_KEY]   with the package on PYTHONPATH; prints `LISTENING http://127.0.0.1:PORT`
"""

from __future__ import annotations

import os
import sys

import xllamacpp


def main(model: str, api_key: str | None = None) -> None:
    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.model_alias = {"tiny"}
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0  # the kernel chooses
    settings.n_ctx, settings.n_parallel, settings.n_predict = 16_384, 4, 512
    settings.n_gpu_layers, settings.cpuparams.n_threads, settings.warmup = 0, 1, False
    settings.use_jinja, settings.ui, settings.endpoint_metrics = True, False, True
    if api_key:
        settings.api_keys = [api_key]
    server = xllamacpp.Server(settings)
    print("LISTENING", server.listening_address, flush=True)
    sys.stdin.buffer.read()  # ends with the process that started this one, whatever becomes of it
    os._exit(0)  # the server's threads have nothing to save


main(*sys.argv[1:])
