#!/usr/bin/env python3
"""tools/dev/mutate.py on a small project: mutants that must be killed, survive, stay unreached or not
compile, and the test that no mutant needs.

usage: test_mutate.py SCRIPT      prints TAP

The cases are skipped where libclang for Python is missing (Debian: python3-clang-14).
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from test_program import Tap

SCRIPT = Path(sys.argv[1]).resolve()
# Where a line ends with a comment, the line has one possible mutant, with this fate.
PRODUCT = """#include <assert.h>
int sum(int first, int second);
int clamp(int number);
int drain(int number);
int never(int number);
const char *end(int length, const char *text);
static int unread;
int sum(int first, int second)
{
    int made;
    made = first; /* killed */
    made += second; /* killed */
    assert(made >= first && made < 100);
    unread = first; /* survived */
    return made;
}
int clamp(int number)
{
    static int limit = 3 + 4;
    if (number > limit) { number = limit; }
    return number;
}
int drain(int number)
{
    while (number > 0)
        number--; /* hung */
    return number;
}
int never(int number)
{
    number += unread; /* unreached */
    return number;
}
const char *end(int length, const char *text)
{
    const char *at = length + text; /* dropped */
    return at;
}
"""
# The first test finds all that the second finds. The third is broken, and the fourth skips itself.
TEST = """#include <stdio.h>
#include <unistd.h>
int sum(int, int);
int clamp(int);
int drain(int);
const char *end(int, const char *);
static int failed;
static void check(int good, const char *name)
{
    failed += !good;
    printf("%sok - %s\\n", good ? "" : "not ", name);
    fflush(stdout);
}
int main(void)
{
    if (NUMBER >= 3)
        return NUMBER == 3 ? 1 : 77;
    printf("1..%d\\n", NUMBER == 1 ? 4 : 1);
    if (NUMBER == 2)
        usleep(300000);
    check(sum(2, 3) == 5, "sum");
    if (NUMBER == 1) {
        check(clamp(8) == 7 && clamp(2) == 2, "clamp");
        check(drain(3) == 0, "drain");
        check(*end(1, "ab") == 'b', "end");
    }
    return failed != 0;
}
"""
MESON = """project('small', 'c')
sum = static_library('sum', 'src/sum.c')
foreach number : [1, 2, 3, 4]
  test('test@0@'.format(number), executable('test@0@'.format(number), 'test.c', link_with: sum,
    c_args: '-DNUMBER=@0@'.format(number)))
endforeach
"""
ok = Tap().ok


def main():
    with tempfile.TemporaryDirectory() as folder:
        tree, work = Path(folder) / "small", Path(folder) / "work"
        (tree / "src").mkdir(parents=True)
        (tree / "src/sum.c").write_text(PRODUCT)
        (tree / "test.c").write_text(TEST)
        (tree / "meson.build").write_text(MESON)
        subprocess.run(["git", "init", "-q", tree], check=True)
        command = [sys.executable, SCRIPT, "--tree", tree, "--work", work, "--paths", "src", "--count", "50",
                   "--grace", "1", "--all-killers", "--setup=-Ddebug=false"]

        def mutate(*more):
            done = subprocess.run([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False)
            return done.returncode, done.stdout

        status, text = mutate()
        if "no libclang" in text:
            print("1..0 # SKIP no libclang for Python (Debian: python3-clang-14)")
            return
        print("1..9")
        state = json.loads((work / "state.json").read_text()) if status == 0 else {}
        ok(status == 0, "all stages run to their end", text)
        if status:
            return
        lines = PRODUCT.splitlines()
        planned = {number: line.split("/* ")[1].split()[0] for number, line in enumerate(lines, 1)
                   if "/* " in line}
        found = {}
        for number, result in state["results"].items():
            hung = any(killer["how"] == "hung" for killer in result["killers"].values())
            found[state["mutants"][number]["line"]] = "hung" if hung else result["verdict"]
        found.update({one["line"]: "dropped" for one in state["dropped"]})
        ok(planned == {line: found.get(line) for line in planned},
           "mutants are killed, survive, hang, stay unreached and do not compile as planned",
           (planned, found, text))
        ok(not {line for line in found if "assert" in lines[line - 1] or "static" in lines[line - 1]},
           "no assert and no static initializer has a mutant", found)
        sums = [result["killers"] for number, result in state["results"].items()
                if state["mutants"][number]["text"] == "made += second;"]
        ok([{name: killer["cases"] for name, killer in one.items()} for one in sums] ==
           [{"test1": ["sum"], "test2": ["sum"]}], "killers and their cases are noted", sums)
        ok(state["tests"].keys() == {"test1", "test2"} and state["left_out"].keys() == {"test3", "test4"},
           "tests that fail or skip themselves without a mutant are left out", state["left_out"])
        ok("None needs 1 of 2 tests" in text and " s:\n  test2\n" in text,
           "the report names the test that no mutant needs", text)
        kept = dict(state["results"])
        removed = next(iter(state["results"]))
        del state["results"][removed]
        (work / "state.json").write_text(json.dumps(state))
        status, text = mutate("--threshold", "99.9")
        again = json.loads((work / "state.json").read_text())["results"]
        others = [number for number in kept if number != removed]
        ok(status == 1 and again[removed]["verdict"] == kept[removed]["verdict"] and
           [again[number] for number in others] == [kept[number] for number in others],
           "a run goes on where it ended, and fails below its threshold", (status, text))
        old = Path(folder) / "old"
        old.mkdir()
        (old / "state.json").write_text((work / "state.json").read_text())
        none = mutate("--lost-since", old)
        number = next(one for one, mutant in state["mutants"].items() if mutant["text"] == "made = first;")
        state["results"][number] = {"verdict": "survived", "killers": {}}
        (work / "state.json").write_text(json.dumps(state))
        some = mutate("--lost-since", old)
        told = "survived: src/sum.c:11: left out: made = first; "
        ok(none[0] == 0 and some[0] == 1 and some[1].startswith(told),
           "a mutant that was killed before and survives now is lost", (none, some))
        (tree / "test.c").write_text(TEST.replace("clamp(8) == 7 && clamp(2) == 2", "1"))
        command.remove("--all-killers")
        status, text = mutate("--work", Path(folder) / "after", "--after", old)
        before = json.loads((old / "state.json").read_text())
        after = json.loads((Path(folder) / "after" / "state.json").read_text())["results"] if status == 0 else {}
        clamp = range(lines.index("int clamp(int number)") + 1, lines.index("int drain(int number)"))
        in_clamp = {number for number in after if before["mutants"][number]["line"] in clamp}
        ok(after.keys() == {number for number, one in before["results"].items() if one["killers"]} and in_clamp and
           in_clamp == {number for number, one in after.items() if one["verdict"] != "killed"} and
           all(len(one["killers"]) <= 1 for one in after.values()),
           "with other tests only the mutants that they no longer kill are lost", (status, text))


main()
