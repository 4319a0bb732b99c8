#!/bin/sh
# Builds examples/mlp against the installed library as a foreign program would: installs into a folder of its
# own, compiles with pkg-config alone, trains with everything resident and with the least budget, and compares
# every bit.
#
# usage: test_program_consumer.sh BUILD SOURCE      prints TAP
set -u
build=$1 source=$2
work=$(mktemp -d /tmp/tidepool-consumer-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
count=0

ok() { # STATUS DESCRIPTION
    count=$((count + 1))
    if [ "$1" -eq 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

field() { # NAME LINE: prints the word behind NAME
    echo "$2" | sed -n "s/.*\\b$1 \\([^ ]*\\).*/\\1/p"
}

meson install -C "$build" --no-rebuild --destdir "$work/root" >"$work/install.log" 2>&1
ok $? "the library, its headers, its pkg-config file and the program are installed"
pc=$(find "$work/root" -name tidepool.pc)
[ -n "$pc" ] || { sed 's/^/# /' "$work/install.log"; echo "1..$count"; exit 0; }
PKG_CONFIG_PATH=$(dirname "$pc"); export PKG_CONFIG_PATH
PKG_CONFIG_SYSROOT_DIR="$work/root"; export PKG_CONFIG_SYSROOT_DIR
LD_LIBRARY_PATH=$(dirname "$(find "$work/root" -name libtidepool.so)"); export LD_LIBRARY_PATH
[ -x "$(find "$work/root" -name tidepool -type f -path '*bin*')" ] && "$(find "$work/root" -name tidepool -type f -path '*bin*')" --version >/dev/null
ok $? "the installed program runs"
share=$(dirname "$(dirname "$(find "$work/root" -name tidepool-train.1)")")/..
[ -f "$share/man/man1/tidepool.1" ] && [ -f "$share/bash-completion/completions/tidepool" ] && [ -f "$share/zsh/site-functions/_tidepool" ]
ok $? "man pages lie where man looks, and what bash and zsh complete where they do"

example=$(dirname "$(find "$work/root" -path '*examples*' -name mlp.c)")
[ -f "$example/Makefile" ] && cp -r "$example" "$work/consumer" && make -s -C "$work/consumer" CFLAGS="-O3 -Wall -Wextra -Werror" >"$work/make.log" 2>&1
ok $? "the example builds against the installed library alone"
sed 's/^/# /' "$work/make.log"

page=$(find "$work/root" -path '*doc*' -name own_loop.md)
python3 - "$page" "$example/mlp.c" <<'EOF'
import re
import sys
page, program = (open(path).read() for path in sys.argv[1:])
quotes = re.findall(r"```c\n(.*?)```", page, re.S)
missing = [quote for quote in quotes if quote not in program]
print("# %d quotes" % len(quotes))
for quote in missing:
    print("# not in mlp.c: " + quote.replace("\n", "\n# "))
sys.exit(bool(missing) or len(quotes) < 8)
EOF
ok $? "what own_loop.md quotes of the example stands there"

for optimizer in adamw sgd; do
    full=$("$work/consumer/mlp" $optimizer full 2>&1); full_status=$?
    least=$("$work/consumer/mlp" $optimizer least 2>&1); least_status=$?
    echo "# full:  $full"
    echo "# least: $least"
    [ $full_status -eq 0 ] && [ $least_status -eq 0 ]
    ok $? "$optimizer: it trains with everything resident and with the least budget"
    [ "$(field device "$least")" -lt "$(field model "$least")" ] 2>/dev/null
    ok $? "$optimizer: the least device budget is smaller than the model data"
    awk -v first="$(field first "$least")" -v last="$(field last "$least")" 'BEGIN { exit !(last > 0 && last < first / 3) }'
    ok $? "$optimizer: it learned: the loss fell to a third or less"
    [ -n "$(field weights "$full")" ] && [ "${full%% device*}" = "${least%% device*}" ]
    ok $? "$optimizer: losses and weights are equal to the last bit for both budgets"
done

port=$(python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
"$work/consumer/mlp" adamw full 1 2 "$port" >"$work/second" 2>&1 &
first=$("$work/consumer/mlp" adamw least 0 2 "$port" 2>&1)
wait $!
second_status=$?
alone=$("$work/consumer/mlp" adamw least 2>&1)
echo "# rank 0: $first"
echo "# rank 1: $(cat "$work/second")"
[ $second_status -eq 0 ] && [ -n "$(field weights "$first")" ] &&
    [ "${first%% device*}" = "${alone%% device*}" ] &&
    [ "$(sed 's/ device.*//' "$work/second")" = "${alone%% device*}" ]
ok $? "two ranks, with other budgets, end with the losses and weights of one"
echo "1..$count"
