"""``python -m targetopt.lab.studies.theory.appendix``: try every inequality, print the table of docs/errata.md."""

from targetopt.lab.studies.theory.appendix import INEQUALITIES, check

print("| statement | label | as printed | as corrected | nearest |")
print("|---|---|---|---|---|")
for name, statement in INEQUALITIES.items():
    found = check(name)
    printed = "holds on" if not found.printed_failures else f"fails {found.printed_failures} of"
    corrected = "holds" if not found.corrected_failures else f"fails {found.corrected_failures}"
    mine = " (ours)" if statement.ours else ""
    print(
        f"| {name}{mine} | `{statement.label}` | {printed} {found.instances} | {corrected} | "
        f"{found.tightest:.3g} |"
    )
