"""The report of tools/gpu_check.sh: a JSON file with all results, and a table in Markdown for people.

Each write replaces both files as a whole, so that they are readable at whatever instant the check is killed.
"""
import json
import os

# The peak rate of bf16 matmuls without sparsity on an H100 or H200 (SXM), by NVIDIA's data sheet. The report
# gives shares of this peak, so that others can compare them, and beside them shares of the rate that this
# GPU's largest matmul reached, if that was measured.
SHEET_PEAK = 989e12
XL_SHARE = 0.45  # gpt2-xl must reach this share of the measured matmul's rate
PEAK_FIGURE = "limit: product"  # name of bench_gpu's figure for that matmul, in TFLOP/s
EXPECTED = {"gpt2, resident: tokens a second": "350k to 420k on an H100; an H200 reached 486k to 496k",
            "gpt2-xl, resident: tokens a second": "38k to 43k on an H100; an H200 reached 46k to 48k",
            "llama-3.2-1b, resident: tokens a second": "an H200 reached 68.7k to 71.6k"}
TORCH = ("gpt2, resident: tokens a second", "gpt2, resident: tokens a second of PyTorch, compiled")

# Figures that the authors of LLMQ (C++ and CUDA, Apache-2.0) published for one H100, bf16 and 524,288 tokens
# a step: name, params in billions, tokens a second.
PUBLISHED = (("LLMQ 1.5 B", 1.54, 59_000), ("LLMQ 7 B", 7.62, 13_800), ("LLMQ 14 B, optimizer on the host", 14.77, 6_300))


def figures(report):
    return [row for result in report["parts"].values() for row in result["figures"]]


def value_of(rows, name):
    return next((row["value"] for row in rows if row["name"] == name and row["value"] is not None), None)


def bounded(row):
    """Gives a row that tests/support/bench.h printed the keys that tests/bench/gpu/train.py uses."""
    for key, right in (("at_least", lambda value, bound: value >= bound), ("at_most", lambda value, bound: value <= bound)):
        if key in row:
            return {**row, "bound": row[key], "met": row["value"] is not None and right(row["value"], row[key])}
    return row


def derived(rows):
    """Figures computed from the figures of two parts."""
    found = []
    peak = value_of(rows, PEAK_FIGURE)
    for row in rows:
        if not row.get("flops_a_token") or not row["value"]:
            continue
        if peak:
            share = row["value"] * row["flops_a_token"] / (peak * 1e12)
            wanted = {"bound": XL_SHARE, "met": share >= XL_SHARE} if row["name"].startswith("gpt2-xl") else {}
            found.append({"name": f"{row['name']}: share of the measured product's rate", "value": share, "unit": "", **wanted})
        found.append({"name": f"{row['name']}: share of {SHEET_PEAK / 1e12:.0f} TFLOP/s by 6 N",
                      "value": row["value"] * 6 * row["params"] / SHEET_PEAK, "unit": ""})
    ours, theirs = (value_of(rows, name) for name in TORCH)
    if ours and theirs:
        found.append({"name": "gpt2, resident: ours over PyTorch, compiled", "value": ours / theirs, "unit": "x", "bound": 1.0,
                      "met": ours >= theirs})
    return found


def all_figures(report):
    """The figures in the table. The candidate algorithms of each matmul are in the JSON file alone."""
    rows = [bounded(row) for row in figures(report) if "candidate" not in row]
    return rows + derived(rows)


def missed(report):
    return [row["name"] for row in all_figures(report) if row.get("met") is False]


def told(value, unit):
    return "not measured" if value is None else f"{value:.4g} {unit}".strip()


def cell(text):
    return str(text).replace("|", "/").replace("\n", " ")


def parts_table(report):
    lines = ["| part | result | seconds | limit |", "|---|---|---:|---:|"]
    for name, result in report["parts"].items():
        counts = ", ".join(f"{n} {status}" for status in ("passed", "failed", "cut", "skipped")
                           if (n := sum(step["status"] == status for step in result["steps"])))
        why = f" ({cell(result['why'])})" if result["why"] else ""
        lines.append(f"| {name} | {result['status']}{why}: {counts or 'no step ended'} | {result['seconds']} "
                     f"| {result['limit_seconds']} |")
    wrong = [(name, step) for name, result in report["parts"].items() for step in result["steps"]
             if step["status"] in ("failed", "cut")]
    return lines + ["", *(f"- {name}, {cell(step['name'])}: **{step['status']}** {cell(step['why'])}" for name, step in wrong)]


def rows_table(report):
    """A table of the short rows. The output of `tidepool info` and each kernel's counts are in the JSON file
    alone."""
    rows = [row for result in report["parts"].values() for row in result["rows"]]
    found = [(row["what"], ", ".join(f"{key} {value}" for key, value in row.items() if key != "what")) for row in rows if "what" in row]
    kernels = [row for row in rows if "spill" in row]
    if kernels:
        found.append(("kernels, as built", f"{len(kernels)}, {sum(row['spill'] > 0 for row in kernels)} of them spill, "
                      f"{sum(row['narrow_stores'] for row in kernels)} stores narrower than 16 bytes"))
    return ["| found | |", "|---|---|", *(f"| {cell(what)} | {cell(rest)} |" for what, rest in found)] if found else []


def figures_table(report):
    lines = ["| figure | value | bound | met | expected |", "|---|---:|---:|---|---|"]
    rows = all_figures(report)
    for row in rows:
        met = {True: "yes", False: "**no**", None: ""}[row.get("met")]
        expected = EXPECTED.get(row["name"]) or cell(row.get("note", ""))
        lines.append(f"| {cell(row['name'])} | {told(row['value'], row['unit'])} | {row.get('bound', '')} | {met} | {expected} |")
    return lines if rows else []


def published_table(report):
    """A table of figures that others published for other machines. Only the shares of the peak, all by the
    same formula, can be compared with ours."""
    if not any(row.get("flops_a_token") for row in figures(report)):
        return []
    lines = ["Published by others, on an H100 (not measured here); share = tokens a second x 6 N / 989 TFLOP/s, as above:", "",
             "| | billion params | tokens a second | share |", "|---|---:|---:|---:|"]
    for name, billions, rate in PUBLISHED:
        lines.append(f"| {name} | {billions} | {rate} | {rate * 6 * billions * 1e9 / SHEET_PEAK:.2f} |")
    return lines


def table(report):
    head = [f"# GPU check, {report['date']}", "", f"{report.get('gpu', '')}; commit {report['commit']}, sources {report['sources']}; "
            f"`{report['command']}`"]
    blocks = [head, parts_table(report), figures_table(report), published_table(report), rows_table(report)]
    return "\n".join("\n".join([*block, ""]) for block in blocks if block)


def replace(path, text):
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text)
    os.replace(beside, path)


def write(folder, report):
    whole = {**report, "derived": derived([bounded(row) for row in figures(report)])}
    replace(folder / "gpu_check.json", json.dumps(whole, indent=1) + "\n")
    replace(folder / "gpu_check.md", table(report))
