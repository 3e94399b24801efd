# What CI runs, in one command.
check:
    .ci/run

# Formatting and lints only: the quick half of `check`.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --release -- -D warnings

# Every attack and every honest control, on the CPU.
exploits:
    cargo run --release -- exploits --target cpu

# The same on a GPU, with the examples; keeps the result in docs/results/.
gpu:
    cargo build --release
    scripts/gpu/check

# How long judgements take here.
bench target="auto":
    cargo run --release -- bench-judge --target {{target}}

# The Python wheel, from the release binary.
wheel:
    scripts/wheel

# The wheel's tests, those that time too, and every trainer that installs without a GPU.
trainers:
    scripts/cpu/wheel --timed
    scripts/cpu/trainers
