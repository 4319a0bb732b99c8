#!/bin/sh
# For whoever has an NVIDIA GPU for a few minutes: builds tidepool for it, shows that it is right there, and measures it. Needs no
# network and installs nothing. `tools/gpu_check.sh --help` tells the parts, their order, and what is left where.
. "$(dirname "$0")/dev/packages.sh" # for CXX, of CC's family
exec python3 "$(dirname "$0")/dev/gpu/gpu_check.py" "$@"
