"""Judge every published claim again from curves.parquet, facts.json and the tests in verdicts.json: no shared code."""

import itertools
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
HERE = HERE if HERE.is_dir() else HERE.parent


@cache
def runs(figure):
    facts = json.loads((HERE / figure / "facts.json").read_text())
    table, rows, found = pq.read_table(HERE / figure / "curves.parquet"), {}, []
    columns = {name: table[name].to_numpy() for name in table.column_names}
    keys = (columns[name] for name in ("problem", "batch_size", "label", "seed"))
    for row, key in enumerate(zip(*keys, strict=True)):
        rows.setdefault(key, []).append(row)
    for key, kept in sorted(rows.items()):
        found.append(run := {name: values[kept] for name, values in columns.items()})
        run["method"] = facts["methods"].get(f"{key[2]} on {key[0]}") or facts["methods"][key[2]]
        run |= {"options": facts["problems"][key[0]], "lost": run["status"][0] == "diverged"}
        run |= {"case": key[:3], "size": key[1] if key[1] == "full" else int(key[1])}
        if key[0] in facts["expert_return"] and "mean_return" in run:
            run["return_share"] = run["mean_return"] / facts["expert_return"][key[0]]
    return found


def cases(figure, want, where=None):
    """(problem, batch size, label) → its runs, one for each seed in order."""
    where, found = where or {}, {}
    for run in runs(want.get("figure", figure)):
        method, options = run["method"], run["options"]
        named = [k for k in ("name", "rule", "m", "inner", "lr") if k in want]
        if (
            all(method.get(k) == want[k] for k in named)
            and method.get("floor") == want.get("floor")
            and want["panel"] in run["panels"][0].split(", ")
            and where.get("problem", "") in options["name"]
            and run["size"] in where.get("batch_sizes", [run["size"]])
            and all(options[k] == v for k, v in where.get("options", {}).items())
        ):
            found.setdefault(run["case"], []).append(run)
    return found


def pairs(figure, asked):
    """Each case with its rivals; for "more steps" with the next smaller m."""
    where = asked.get("where")
    if "methods" in asked:
        found = sorted(cases(figure, asked["methods"], where).items(), key=lambda c: m_of(*c))
        return [(b, [a]) for (k, a), (n, b) in itertools.pairwise(found) if k[:2] == n[:2]]
    out = []
    for one in asked["contests"]:
        for case, ours in cases(figure, one["methods"], where).items():
            beside = [
                theirs
                for want in one["rivals"]
                for other, theirs in cases(figure, want, where).items()
                if other[:2] == case[:2]
                and ("m" in want or m_of(0, theirs)[1] in (None, m_of(0, ours)[1]))
            ]
            out += [(ours, beside)] if beside else []
    return out


def m_of(case, each):
    return case and case[:2], each[0]["method"].get("m")


def number(run, asked):
    """What a claim compares, lower being better; infinite for a run that diverged."""
    if run["lost"]:
        return np.inf
    if asked["kind"] == "RisesLess":
        ends = run["loss"][run["epoch"] == np.round(run["epoch"])]
        return float(np.mean(ends[1:] > ends[:-1] * (1 + 1e-9)))
    q = asked.get("quantity", {"column": "loss", "higher": False})
    values = run[q["column"]]
    if "share" in q:
        first, end = run["step"][0], run["step"][-1]
        late = run["step"] > min(first + round((1 - q["share"]) * (end - first)), end - 1)
        return float(np.exp(np.log(np.maximum(values[late], np.finfo(float).tiny)).mean()))
    return float(values[~np.isnan(values)][-1]) * (-1 if q["higher"] else 1)


def cost_ratio(ours, theirs, asked):
    """How many times as much ours cost: to the loss that theirs ended with, or in the worst of four counts."""
    both = [(np.inf if ours["lost"] else 1.0, np.inf if theirs["lost"] else 1.0)]
    if both == [(1.0, 1.0)] and asked["kind"] == "Cheaper":
        both = [[cost(run, theirs["loss"][-1], asked["tau"]) for run in (ours, theirs)]]
    elif both == [(1.0, 1.0)]:
        counts = ("oracle_calls", "inner_steps", "forward_calls", "backward_calls")
        both = [(float(ours[c][-1]), float(theirs[c][-1])) for c in counts if c in ours]
    return max(1.0 if a == b else a / b if b > 0 else np.inf for a, b in both)


def cost(run, goal, tau):
    there = np.flatnonzero(run["loss"] <= goal)
    spent = (run["oracle_calls"] + 0.5 * run["value_calls"]) * tau + run["inner_steps"]
    return float(spent[there[0]]) if there.size else np.inf


def score(asked, ours, rivals):
    """1, ½ or 0 for one run and its rivals."""
    kind, factor = asked["kind"], asked.get("factor", 1.01)
    if kind in ("Cheaper", "NoDearer"):
        worst = max(cost_ratio(ours, run, asked) for run in rivals)
        if kind == "NoDearer" and not (ours["lost"] and worst == 1):
            return float(worst <= 1.01)
        return (worst < 1) + 0.5 * (worst == 1)
    a, numbers = number(ours, asked), [number(run, asked) for run in rivals]
    b = max(numbers) if asked.get("either") else min(numbers)
    if kind == "RisesLess":
        a, b = (1.0 if np.isinf(x) else x for x in (a, b))
        return (a < b) + 0.5 * (a == b)
    if np.isinf(a) and np.isinf(b):
        return 0.5
    if kind == "OnPar":
        return float(a <= factor * b)
    if asked.get("quantity", {}).get("higher"):
        return 0.5 + 0.5 * (a < b - 0.01) - 0.5 * (b < a - 0.01)
    if factor == 1.01:
        won = 0.5 + 0.5 * (a < b / factor) - 0.5 * (b < a / factor)
    else:
        won = float(a * factor < b if kind in ("Better", "MoreSteps") else a * factor <= b)
    return 1 - won if asked.get("less") else won


def scores(figure, asked):
    """[seed, case], and the batch size of each case."""
    kind = asked["kind"]
    if kind not in ("Reaches", "ReachesOnSeveral", "Attains"):
        both = pairs(figure, asked)
        got = [
            [score(asked, r, [o[s] for o in rest]) for s, r in enumerate(us)] for us, rest in both
        ]
        return np.array(got).T, [ours[0]["size"] for ours, _ in both]
    found = cases(figure, asked["methods"], asked.get("where"))
    if kind == "Attains":
        got = [[np.nanmax(r["return_share"]) >= asked["share"] for r in e] for e in found.values()]
    else:
        got = [[(r["grad_norm"] < asked["level"]).any() for r in e] for e in found.values()]
    if kind == "ReachesOnSeveral":
        there = [[c for c, g in zip(found, got, strict=True) if g[s]] for s in range(len(got[0]))]
        got = [[len({case[k] for case in some}) >= 2 for some in there] for k in (0, 1)]
    return np.array(got, dtype=float).T, [each[0]["size"] for each in found.values()]


def timing(figure, asked):
    where = asked.get("where") or {
        "batch_sizes": [asked["states"]],
        "options": {"gatherer": asked["gatherer"]},
    }
    middle = lambda run, *names: float(np.median(sum(run[n][1:] for n in names)))  # noqa: E731
    whole, beside = ("gathering_time", "updating_time"), {}
    sgd = {
        c[:2]: each for c, each in cases(figure, {"name": "sgd", "panel": "main"}, where).items()
    }
    sso = {"name": "sso", "rule": "gradient-step", "panel": "main"}
    for case, each in cases(figure, sso, where).items():
        both = zip(each, sgd[case[:2]], strict=True)
        ratio = np.array([middle(a, *whole) / middle(b, *whole) for a, b in both])
        beside.setdefault(each[0]["method"]["m"], {})[each[0]["size"]] = ratio
    if asked["kind"] == "Falls":
        falls = [s[b] < s[a] for s in beside.values() for a, b in itertools.pairwise(sorted(s))]
        return "holds" if np.all(falls) else "does not hold" if np.mean(falls) < 0.5 else "mixed"
    if asked["says_of_a_machine"]:
        return "measured here"
    plain = [middle(run, whole[0]) / middle(run, whole[1]) for run in next(iter(sgd.values()))]
    values = beside[asked["m"]][asked["states"]] if "m" in asked else np.array(plain)
    inside = (asked["low"] <= values) & (values <= asked["high"])
    return "holds" if inside.all() else "mixed" if inside.any() else "does not hold"


def judge(figure, asked):
    if asked["kind"] in ("Ratio", "Falls"):
        return timing(figure, asked), None
    values, sizes = scores(figure, asked)
    if "quieter" in asked:
        quiet = np.array([size in asked["quieter"] for size in sizes])
        each = values[:, quiet].mean(axis=1) - values[:, ~quiet].mean(axis=1)
        verdict = "holds" if each.min() > 0 else "does not hold" if each.max() < 0 else "mixed"
        return verdict, float(each.mean())
    each, asks = (
        values.mean(axis=1),
        asked["asks"],
    )  # of three seeds: the interval is from worst to best
    lost = each.max() == 0 if asks == 0 else each.max() < 0.5
    fails = "false as stated" if asks == 1 else "does not hold" if lost else "mixed"
    return "holds" if each.min() > asks or each.min() == 1 else fails, float(values.mean())


if __name__ == "__main__":
    wrong = checked = elsewhere = 0
    for path in sorted(HERE.glob("*/curves.parquet")):
        for entry in json.loads((path.parent / "verdicts.json").read_text()):
            if not entry.get("asked"):
                elsewhere += entry["verdict"] != "not judged"
                continue
            verdict, share = judge(path.parent.name, entry["asked"])
            said = entry["numbers"].get("share", entry["numbers"].get("difference"))
            same = verdict == entry["verdict"] and (share is None or abs(share - said) < 1e-9)
            checked, wrong = checked + 1, wrong + (not same)
            if not same:
                print(path.parent.name, entry, "recomputed:", verdict, share)
    print(
        f"{checked} verdicts recomputed, {wrong} differ; {elsewhere} were judged where they were run"
    )
    sys.exit(wrong > 0)
