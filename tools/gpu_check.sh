#!/bin/sh
# Checks tidepool on a machine with an NVIDIA GPU in a few minutes: builds it for that GPU, runs the GPU's
# tests and measures it. Needs no network and installs nothing. `tools/gpu_check.sh --help` lists the parts,
# the options and the files that it writes.
. "$(dirname "$0")/dev/packages.sh" # sets CXX to the C++ compiler that belongs to CC
exec python3 "$(dirname "$0")/dev/gpu/gpu_check.py" "$@"
