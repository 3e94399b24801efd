//! What this machine offers: GPUs, compilers, Python with torch, downloads, cache folders.
