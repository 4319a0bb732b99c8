#!/bin/sh
# Reports a test that can't run here as skipped: skip.sh REASON
echo "1..0 # SKIP $1"
