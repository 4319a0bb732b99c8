#!/usr/bin/env python3
"""Counts the test cases that ran: reads meson's test logs and prints each skip with its reason, each failure,
and the sums.

usage: test_count.py LABEL:STATUS=TESTLOG.json ...      STATUS: meson test's exit status

The cases of a test program are those of its TAP output (from cmocka with CMOCKA_MESSAGE_OUTPUT=TAP, and from
our scripts). A program without TAP output counts as one case. Since cmocka's skip() takes no reason, a test
prints the line "skipped: REASON" before it; a program that skips itself as a whole prints "SKIP REASON". A
program that dies, times out or fails without naming a failed case counts as one more failure, so that a crash
is noticed even if all cases before it passed. So does a meson that failed without a failed case in its log,
and a missing log. Failures are printed last, so that they are seen even if only the end of a long output is.
The last line reads

    N passed, N failed[, N skipped]

and the exit status is 0 only if something passed and nothing failed.
"""
import json
import re
import sys

CASE = re.compile(r"^\s*(not ok|ok)\b\s*(\d*)\s*-?\s*(.*)$")
SKIP = re.compile(r"#\s*skip\S*\s*(.*)", re.IGNORECASE)
PLAN = re.compile(r"^\s*1\.\.(\d+)\s*$", re.MULTILINE)


def cases(text):
    """Yields (verdict, name or reason) for each TAP case in a program's output."""
    reason = ""
    for line in text.splitlines():
        found = CASE.match(line)
        if not found:
            said = re.match(r"^#?\s*skip(?:ped)?: (.*)$", line)
            reason = said.group(1) if said else reason
            continue
        skip = SKIP.search(found.group(3))
        if skip:
            name, told = found.group(3)[:skip.start()].strip(), skip.group(1).strip()
            if not name:  # cmocka prints "# SKIP name"
                name, told = told, ""
            yield "skipped", f"{name}: {told or reason or 'no reason given'}"
            reason = ""
        else:
            yield ("passed" if found.group(1) == "ok" else "failed"), found.group(3)


def test_verdicts(test):
    text = test.get("stdout", "") or ""
    found = list(cases(text))
    plan = PLAN.search(text)
    failed = [name for verdict, name in found if verdict == "failed"]
    if test["result"] == "SKIP":
        told = re.search(r"(?:^|#)\s*SKIP\S*:? (.*)$", text, re.MULTILINE | re.IGNORECASE)
        return found or [("skipped", f"{test['name']}: {told.group(1) if told else 'no reason given'}")]
    if plan and len(found) < int(plan.group(1)):
        found.append(("failed", f"{test['name']} ended after {len(found)} of {plan.group(1)} cases"))
    elif test["result"] not in ("OK", "EXPECTEDFAIL") and not failed:
        found.append(("failed", f"{test['name']}: {test['result']}, exit status {test.get('returncode')}"))
    elif not found:
        found.append(("passed" if test["result"] == "OK" else "failed", test["name"]))
    return found


def log_read(path):
    try:
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]
    except OSError:
        return None


def label_count(label, status, path, totals):
    """Adds a log's cases to `totals`, prints its skips, and returns the lines that describe its failures."""
    tests = log_read(path)
    if not tests:
        totals["failed"] += 1
        return [f"{label}: FAILED: nothing ran ({path})"]
    told = []
    here = {"passed": 0, "failed": 0, "skipped": 0}
    for test in tests:
        verdicts = test_verdicts(test)
        for verdict, name in verdicts:
            here[verdict] += 1
            if verdict == "skipped":
                print(f"{label}: {test['name']}: SKIPPED: {name}")
            elif verdict == "failed":
                told.append(f"{label}: {test['name']}: FAILED: {name}")
        if any(verdict == "failed" for verdict, _ in verdicts):
            told += tail(test)
    if status != 0 and here["failed"] == 0:
        told.append(f"{label}: FAILED: meson test ended with status {status}, and no case tells why")
        here["failed"] = 1
    print(f"{label}: {here['passed']} passed, {here['failed']} failed, {here['skipped']} skipped")
    for verdict, count in here.items():
        totals[verdict] += count
    return told


def tail(test):
    wanted = [line for line in (test.get("stdout", "") + "\n" + test.get("stderr", "")).splitlines()
              if line.strip() and not re.match(r"^\s*ok\b", line)]
    return ["    | " + line[:300] for line in wanted[-25:]]


def main():
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    told = []
    for argument in sys.argv[1:]:
        name, path = argument.split("=", 1)
        label, status = name.rsplit(":", 1)
        told += label_count(label, int(status), path, totals)
    for line in told:
        print(line)
    skipped = f", {totals['skipped']} skipped" if totals["skipped"] else ""
    print(f"{totals['passed']} passed, {totals['failed']} failed{skipped}")
    return 0 if totals["failed"] == 0 and totals["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
