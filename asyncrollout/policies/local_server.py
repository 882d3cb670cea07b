"""The process behind `local_llm`: llama.cpp's server, until standard input ends, as it does when the parent is gone."""

import importlib
import os
import sys
from typing import Any

_ERRORS_ONLY = 1
_CACHE_MIB = 512  # for prompts of sessions without a slot, which are slow to read again; the default is 8 GB


def serve(model: str, parallel: int, context: int) -> None:
    """Print the address on standard output once the model is loaded, and nothing else."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    llama: Any = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = model
    params.n_parallel, params.n_ctx = parallel, parallel * context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = _CACHE_MIB
    params.verbosity = _ERRORS_ONLY
    # The logprobs that it gives are the model's own, so that is what a request without other wishes is sampled from.
    sampling = params.sampling
    sampling.temp, sampling.top_k, sampling.top_p, sampling.min_p = 1.0, 0, 1.0, 0.0
    server = llama.Server(params)  # at a port that was free
    os.write(stdout, f"{server.listening_address}\n".encode())
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
