"""Judge every published claim again from what is published, with no code of the package.

verdicts.json says under "asked" what a claim compares. Figures with runs have them in curves.parquet and facts.json;
figures on theory have both sides of every inequality in inequalities.parquet.
"""

import json
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
CASE, RUN = ["problem", "size"], ["problem", "size", "label", "seed", "m", "of", "options", "run"]
DONE = ("oracle_calls", "inner_steps", "forward_calls", "backward_calls")


@cache
def runs(figure):
    """The runs of a figure: their curves, and what facts.json says of them."""
    facts, found = json.loads((HERE / figure / "facts.json").read_text()), []
    table = pd.read_parquet(HERE / figure / "curves.parquet")
    keys = ["problem", "batch_size", "label", "seed"]
    for (problem, size, label, seed), rows in table.groupby(keys, observed=True):
        run = {name: rows[name].to_numpy() for name in rows}
        if problem in facts["expert_return"] and "mean_return" in rows:
            run["return_share"] = run["mean_return"] / facts["expert_return"][problem]
        of = facts["methods"].get(f"{label} on {problem}") or facts["methods"][label]
        size, options = int(size) if size.isdigit() else size, facts["problems"][problem]
        found.append((problem, size, label, seed, of.get("m"), of, options, run))
    return pd.DataFrame(found, columns=RUN)


def chosen(figure, want, where, others=None):
    """The runs of these methods where the claim is about them, or on problems with other options."""
    found, of = runs(want.get("figure", figure)), {"floor": None, **want}
    keep = [
        all(r.of.get(k) == of[k] for k in of.keys() - {"kind", "figure", "panel"})
        and want["panel"] in r.run["panels"][0].split(", ")
        and where.get("problem", "") in r.options["name"]
        and r.size in where.get("batch_sizes", [r.size])
        and all(r.options[k] == v for k, v in (others or where.get("options", {})).items())
        for r in found.itertuples()
    ]
    return found[keep]


def pairs(figure, asked, where):
    """Each run beside its rivals of the same seed: of a contest, the next smaller m, or the problem named instead."""
    ours = chosen(figure, asked["methods"], where) if "methods" in asked else None
    if "instead" in asked:
        apart = {"label", *asked["instead"]}
        both = [ours, chosen(figure, asked["methods"], {}, asked["instead"])]
        for k, table in enumerate(both):
            rest = [sorted((n, o[n]) for n in o.keys() - apart) for o in table.options]
            both[k] = table.assign(rest=[*map(str, rest)])
        return both[0].merge(both[1], on=["rest", "m", "seed"], suffixes=("", "_r"))
    if "methods" in asked:
        both = ours.merge(ours, on=[*CASE, "seed"], suffixes=("", "_r"))
        return both[both.m_r == both.m.map({b: a for a, b in pairwise(sorted(set(ours.m)))})]
    found = []
    for k, one in enumerate(asked["contests"]):
        for want in one["rivals"]:
            ours, theirs = (chosen(figure, methods, where) for methods in (one["methods"], want))
            both = ours.merge(theirs, on=[*CASE, "seed"], suffixes=("", "_r"))
            found.append(both[("m" in want) | both.m_r.isna() | (both.m_r == both.m)].assign(k=k))
    return pd.concat(found)


def number(run, asked, goal):
    """What a claim compares, lower being better."""
    if run["status"][0] == "diverged":
        return 1.0 if asked["kind"] == "RisesLess" else np.inf
    if asked["kind"] == "RisesLess":
        ends = run["loss"][run["epoch"] == np.round(run["epoch"])]
        return np.mean(ends[1:] > ends[:-1] * (1 + 1e-9))
    if asked["kind"] == "Cheaper":
        spent = (run["oracle_calls"] + 0.5 * run["value_calls"]) * asked["tau"] + run["inner_steps"]
        return np.min(spent[run["loss"] <= goal], initial=np.inf)
    q = asked.get("quantity", {"column": "loss", "higher": False})
    values, first, end = run[q["column"]], run["step"][0], run["step"][-1]
    if "share" in q:
        late = run["step"] > min(first + round((1 - q["share"]) * (end - first)), end - 1)
        return np.exp(np.log(np.maximum(values[late], np.finfo(float).tiny)).mean())
    return values[~np.isnan(values)][-1] * (-1 if q["higher"] else 1)


def score(asked, ours, theirs):
    """1 if ours does what the claim says beside this rival, ½ if they are even, 0 if not."""
    kind, factor, margin = asked["kind"], asked.get("factor", 1.01), 0.0
    if kind in ("Ratio", "Falls"):
        both = zip((ours, theirs), asked["times"], strict=True)
        a, b = (np.median(sum(run[name][1:] for name in names)) for run, names in both)
        return a / b if kind == "Falls" else float(asked["low"] <= a / b <= asked["high"])
    a, b = (number(run, asked, theirs["loss"][-1]) for run in (ours, theirs))
    if np.isinf(a) and np.isinf(b):
        return 0.5
    if kind == "NoDearer" and not np.isinf(a + b):
        ends = [(float(ours[c][-1]), float(theirs[c][-1])) for c in DONE if c in ours]
        a, b = max(1.0 if x == y else x / y if y > 0 else np.inf for x, y in ends), 1.0
    if kind in ("OnPar", "NoDearer"):
        return float(a <= factor * b)
    if factor > 1.01:
        return float((a * factor <= b) != asked.get("less", False))
    if kind in ("Cheaper", "RisesLess") or asked.get("quantity", {}).get("higher"):
        factor, margin = 1, 0.01 * (kind not in ("Cheaper", "RisesLess"))
    return 0.5 + 0.5 * (a < b / factor - margin) - 0.5 * (b < a / factor - margin)


def scores(figure, asked, where):
    """A score for each line and seed: of a run, or of the worst (with "either", the best) comparison with a rival."""
    if "share" in asked or "level" in asked:
        found = chosen(figure, asked["methods"], where)
        if "share" in asked:
            hits = [np.nanmax(run["return_share"]) >= asked["share"] for run in found.run]
        else:
            hits = [np.nanmin(run["grad_norm"]) < asked["level"] for run in found.run]
        return found.assign(score=np.array(hits, float))
    found = pairs(figure, asked, where)
    found["score"] = [score(asked, *both) for both in zip(found.run, found.run_r, strict=True)]
    lines = found.groupby([name for name in ("k", *RUN[:5]) if name in found], dropna=False)
    return lines.score.agg("max" if asked.get("either") else "min").reset_index()


def mean(table):
    return table.groupby("seed").score.mean()


def verdict(holds, partly=False):
    return "holds" if holds else "mixed" if partly else "does not hold"


def theory(figure, claim, asked):
    """Whether every inequality holds, or a line has the slope that was foretold."""
    rows = pd.read_parquet(HERE / figure / "inequalities.parquet").query("claim == @claim")
    if asked["kind"] == "Below":
        return verdict((rows.left <= rows.right).all())
    slope = np.polyfit(rows["at"], rows.left, 1)[0]
    return verdict(abs(slope / asked["slope"] - 1) <= asked["within"])


def judge(figure, claim, asked):
    """The verdict, and the mean score or difference of scores that goes with it."""
    kind, asks = asked["kind"], asked.get("asks")
    if kind in ("Below", "Slope"):
        return theory(figure, claim, asked), None
    if asked.get("says_of_a_machine"):
        return "measured here", None
    found = scores(figure, asked, asked.get("where") or {})
    if kind == "Falls":
        falls = np.diff(found.pivot(index=["m", "seed"], columns="size", values="score")) < 0
        return verdict(falls.all(), falls.mean() >= 0.5), falls.mean()
    each = mean(found)
    if kind == "ReachesOnSeveral":
        several = found[found.score > 0].groupby("seed")[CASE].nunique() >= 2
        each = several.mean(axis=1).reindex(each.index, fill_value=0)
    if "quieter" in asked:
        quiet = found["size"].isin(asked["quieter"])
        each = mean(found[quiet]) - mean(found[~quiet])
        return verdict(each.min() > 0, each.max() >= 0), each.mean()
    partly = each.max() >= 0.5 if asks else each.max() > 0
    said = verdict(each.min() > asks or each.min() == 1, partly)
    return "false as stated" if asks == 1 and said != "holds" else said, each.mean()


if __name__ == "__main__":
    same = []
    for path in sorted(HERE.glob("*/verdicts.json")):
        for entry in [entry for entry in json.loads(path.read_text()) if entry.get("asked")]:
            found, share = judge(path.parent.name, entry["claim"], entry["asked"])
            said = entry["numbers"].get("share", entry["numbers"].get("difference", share))
            same.append(found == entry["verdict"] and (said is None or abs(share - said) < 1e-9))
            if not same[-1]:
                print(path.parent.name, entry, "recomputed:", found, share)
    print(f"{len(same)} verdicts recomputed, {same.count(False)} differ")
    sys.exit(not all(same))
