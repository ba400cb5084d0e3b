"""Judge every published claim again from curves.parquet, facts.json and the tests in verdicts.json: no shared code."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
HERE = HERE if HERE.is_dir() else HERE.parent
COUNTS = ("oracle_calls", "inner_steps", "forward_calls", "backward_calls")
known = {}


def runs(figure):
    if figure not in known:
        facts, rows = json.loads((HERE / figure / "facts.json").read_text()), {}
        table = pq.read_table(HERE / figure / "curves.parquet")
        columns = {name: table[name].to_numpy() for name in table.column_names}
        keys = zip(*(columns[k] for k in ("problem", "batch_size", "label", "seed")), strict=True)
        for i, key in enumerate(keys):
            rows.setdefault(key, []).append(i)
        known[figure] = []
        for (problem, size, label, seed), kept in rows.items():
            run = {name: values[kept].copy() for name, values in columns.items()}
            method = facts["methods"].get(f"{label} on {problem}") or facts["methods"][label]
            run |= {
                "method": method,
                "options": facts["problems"][problem],
                "problem": problem,
                "label": label,
            }
            run |= {
                "lost": run["status"][0] == "diverged",
                "panels": run["panels"][0].split(", "),
                "seed": seed,
            }
            if problem in facts["expert_return"] and "mean_return" in run:
                run["return_share"] = run["mean_return"] / facts["expert_return"][problem]
            known[figure].append(
                run | {"size": size if size == "full" else int(size), "panel": (problem, size)}
            )
    return known[figure]


def cases(figure, want, where=None):
    """(panel, label) → the runs of the seeds, in order."""
    where, found = where or {}, {}
    for run in runs(want.get("figure", figure)):
        method, named = run["method"], ("name", "rule", "m", "inner", "lr")
        fits = all(method.get(k) == want[k] for k in named if k in want) and method.get(
            "floor"
        ) == want.get("floor")
        fits &= (
            want["panel"] in run["panels"] and where.get("problem", "") in run["options"]["name"]
        )
        fits &= "batch_sizes" not in where or run["size"] in where["batch_sizes"]
        if fits and all(run["options"][k] == v for k, v in where.get("options", {}).items()):
            found.setdefault((run["panel"], run["label"]), []).append(run)
    return {key: sorted(each, key=lambda run: run["seed"]) for key, each in found.items()}


def pairs(figure, asked):
    """Each case with its rivals; for "more steps" with the next smaller m."""
    if "methods" in asked:
        found = cases(figure, asked["methods"], asked.get("where"))
        by_m = sorted(found.items(), key=lambda item: (item[0][0], item[1][0]["method"]["m"]))
        return [(b, [a]) for (k, a), (n, b) in itertools.pairwise(by_m) if k[0] == n[0]]
    out = []
    for one in asked["contests"]:
        for (panel, _), ours in cases(figure, one["methods"], asked.get("where")).items():
            beside = []
            for want in one["rivals"]:
                for (other, _), theirs in cases(figure, want, asked.get("where")).items():
                    m = theirs[0]["method"].get("m")
                    if other == panel and (
                        "m" in want or m is None or m == ours[0]["method"].get("m")
                    ):
                        beside.append(theirs)
            out += [(ours, beside)] if beside else []
    return out


def final(run, name="loss"):
    return np.inf if run["lost"] else float(run[name][-1])


def quantity(run, q):
    if run["lost"]:
        return -np.inf if q["higher"] else np.inf
    if "share" not in q:
        values = run[q["column"]]
        return float(values[~np.isnan(values)][-1])
    first, end = run["step"][0], run["step"][-1]
    late = run["step"] > min(first + round((1 - q["share"]) * (end - first)), end - 1)
    return float(np.exp(np.log(np.maximum(run[q["column"]][late], np.finfo(float).tiny)).mean()))


def rises(run):
    ends = run["loss"][run["epoch"] == np.round(run["epoch"])]
    return 1.0 if run["lost"] else float(np.mean(ends[1:] > ends[:-1] * (1 + 1e-9)))


def cost(run, goal, tau):
    there = np.flatnonzero(run["loss"] <= goal)
    spent = (run["oracle_calls"] + 0.5 * run["value_calls"]) * tau + run["inner_steps"]
    return float(spent[there[0]]) if there.size else np.inf


def against(a, b, worse=1.01):
    """1 if a is lower by the factor, 0 if b is (or, for larger factors, if a is not), ½ for ties."""
    if np.isinf(a) and np.isinf(b):
        return 0.5
    return (
        0.5 + 0.5 * (a < b / worse) - 0.5 * (b < a / worse)
        if worse == 1.01
        else float(a * worse <= b)
    )


def score(kind, asked, ours, rivals):
    """1, ½ or 0 for one run and its rivals."""
    mine, theirs = final(ours), [final(run) for run in rivals]
    if kind in ("Beats", "MoreStepsHelp", "Gains"):
        won = against(mine, min(theirs), asked.get("factor", 1.01))
        return 1 - won if asked.get("less") else won
    if kind == "OnPar":
        best = max(theirs) if asked["either"] else min(theirs)
        return 0.5 if np.isinf(mine) and np.isinf(best) else float(mine <= asked["factor"] * best)
    if kind in ("Better", "MoreSteps"):
        q, factor = asked["quantity"], asked.get("factor", 1.01)
        a, values = quantity(ours, q), [quantity(run, q) for run in rivals]
        if q["higher"]:
            return 0.5 + 0.5 * (a > max(values) + 0.01) - 0.5 * (max(values) > a + 0.01)
        return against(a, min(values)) if factor == 1.01 else float(a * factor < min(values))
    if kind == "RisesLess":
        a, b = rises(ours), min(rises(run) for run in rivals)
        return (a < b) + 0.5 * (a == b)
    ratios = []
    for run in rivals:  # what is left compares costs: Cheaper, NoDearer
        both = (np.inf if ours["lost"] else 1.0, np.inf if run["lost"] else 1.0)
        pick = (
            [both]
            if np.inf in both
            else [(float(ours[c][-1]), float(run[c][-1])) for c in COUNTS if c in ours]
        )
        if kind == "Cheaper" and np.inf not in both:
            pick = [tuple(cost(each, final(run), asked["tau"]) for each in (ours, run))]
        ratios += [1.0 if a == b else a / b if b > 0 else np.inf for a, b in pick]
    worst = max(ratios)
    if kind == "NoDearer":
        return 0.5 if ours["lost"] and worst == 1 else float(worst <= 1.01)
    return (worst < 1) + 0.5 * (worst == 1)


def scores(figure, asked):
    """[seed, case], and the batch size of each case."""
    kind = asked["kind"]
    if kind in ("Reaches", "ReachesOnSeveral", "Attains"):
        found = list(cases(figure, asked["methods"], asked.get("where")).values())
        if kind == "Attains":
            got = [
                [float(np.nanmax(run["return_share"]) >= asked["share"]) for run in each]
                for each in found
            ]
        else:
            got = [
                [float((run["grad_norm"] < asked["level"]).any()) for run in each] for each in found
            ]
        if kind == "ReachesOnSeveral":
            names = [(each[0]["problem"], each[0]["size"]) for each in found]
            reached = [[n for n, g in zip(names, got, strict=True) if g[s]] for s in range(3)]
            got = [[float(len({n[k] for n in some}) >= 2) for some in reached] for k in (0, 1)]
        return np.array(got).T, [each[0]["size"] for each in found]
    both = pairs(figure, asked)
    got = [
        [score(kind, asked, run, [other[s] for other in rivals]) for s, run in enumerate(ours)]
        for ours, rivals in both
    ]
    return np.array(got).T, [ours[0]["size"] for ours, _ in both]


def middle(run, *names):
    return float(np.median(sum(run[name][1:] for name in names)))


def timing(figure, asked):
    where = asked.get("where") or {
        "batch_sizes": [asked["states"]],
        "options": {"gatherer": asked["gatherer"]},
    }
    sgd = cases(figure, {"name": "sgd", "panel": "main"}, where)
    whole, beside = ("gathering_time", "updating_time"), {}
    sso = {"name": "sso", "rule": "gradient-step", "panel": "main"}
    for (panel, _), each in cases(figure, sso, where).items():
        [base] = [runs_ for (other, _), runs_ in sgd.items() if other == panel]
        ratio = np.array(
            [middle(a, *whole) / middle(b, *whole) for a, b in zip(each, base, strict=True)]
        )
        beside.setdefault(each[0]["method"]["m"], {})[each[0]["size"]] = ratio
    if asked["kind"] == "Falls":
        falls = [
            s[b] < s[a]
            for s in beside.values()
            for a, b in zip(sorted(s), sorted(s)[1:], strict=False)
        ]
        share = float(np.mean(falls))
        return "holds" if share == 1 else "does not hold" if share < 0.5 else "mixed"
    if asked["says_of_a_machine"]:
        return "measured here"
    values = (
        beside[asked["m"]][asked["states"]]
        if "m" in asked
        else np.array(
            [middle(run, whole[0]) / middle(run, whole[1]) for run in next(iter(sgd.values()))]
        )
    )
    inside = (asked["low"] <= values) & (values <= asked["high"])
    return "holds" if inside.all() else "mixed" if inside.any() else "does not hold"


def judge(figure, asked):
    if asked["kind"] in ("Ratio", "Falls"):
        return timing(figure, asked), None
    values, sizes = scores(figure, asked)
    if "quieter" in asked:
        quiet = np.array([size in asked["quieter"] for size in sizes])
        each = values[:, quiet].mean(axis=1) - values[:, ~quiet].mean(axis=1)
        return (
            "holds" if each.min() > 0 else "does not hold" if each.max() < 0 else "mixed"
        ), float(each.mean())
    each, asks = (
        values.mean(axis=1),
        asked["asks"],
    )  # three seeds: the interval is from the worst to the best
    if each.min() > asks or each.min() == 1:
        return "holds", float(values.mean())
    lost = each.max() == 0 if asks == 0 else each.max() < 0.5
    return ("false as stated" if asks == 1 else "does not hold" if lost else "mixed"), float(
        values.mean()
    )


if __name__ == "__main__":
    wrong = checked = elsewhere = 0
    for path in sorted(HERE.glob("*/verdicts.json")):
        if not (path.parent / "curves.parquet").exists():
            continue  # a study of its own, with its own numbers
        for entry in json.loads(path.read_text()):
            if not entry.get("asked"):
                elsewhere += entry["verdict"] != "not judged"
                continue
            verdict, share = judge(path.parent.name, entry["asked"])
            published = entry["numbers"].get("share", entry["numbers"].get("difference"))
            same = verdict == entry["verdict"] and (share is None or abs(share - published) < 1e-9)
            checked, wrong = checked + 1, wrong + (not same)
            if not same:
                print(
                    path.parent.name,
                    entry["claim"],
                    entry["verdict"],
                    published,
                    "recomputed:",
                    verdict,
                    share,
                )
    print(
        f"{checked} verdicts recomputed, {wrong} differ; {elsewhere} were judged where they were run"
    )
    sys.exit(wrong > 0)
