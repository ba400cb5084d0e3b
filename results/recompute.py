"""Judge every published claim again from curves.parquet, facts.json and the tests in verdicts.json: no shared code."""

import json
import sys
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
HERE = HERE if HERE.is_dir() else HERE.parent


@cache
def runs(figure):
    """Lines of the figure, each a list of runs, one a seed; a run is its columns and what facts.json says of it."""
    facts, found = json.loads((HERE / figure / "facts.json").read_text()), {}
    table = pq.read_table(HERE / figure / "curves.parquet").to_pandas()
    for (problem, size, label, _), rows in table.groupby(
        ["problem", "batch_size", "label", "seed"], observed=True
    ):
        run = {name: rows[name].to_numpy() for name in rows}
        run |= {"of": facts["methods"].get(f"{label} on {problem}") or facts["methods"][label]}
        run |= {"options": facts["problems"][problem], "case": (problem, size)}
        run |= {"size": int(size) if size.isdigit() else size, "m": run["of"].get("m")}
        run |= {"lost": run["status"][0] == "diverged"}
        if problem in facts["expert_return"] and "mean_return" in rows:
            run["return_share"] = run["mean_return"] / facts["expert_return"][problem]
        found.setdefault((problem, size, label), []).append(run)
    return list(found.values())


def lines(figure, want, where):
    """The lines of these methods where the claim is about them."""
    for line in runs(want.get("figure", figure)):
        of, options = line[0]["of"], line[0]["options"]
        if (
            all(of.get(k) == want.get(k) for k in {"floor", *want} - {"kind", "figure", "panel"})
            and want["panel"] in line[0]["panels"][0].split(", ")
            and where.get("problem", "") in options["name"]
            and line[0]["size"] in where.get("batch_sizes", [line[0]["size"]])
            and all(options[k] == v for k, v in where.get("options", {}).items())
        ):
            yield line


def contests(figure, asked, where):
    """Lines and their rivals on the same problem and batch size; for "more steps", the next smaller m."""
    if "instead" in asked:
        others = list(lines(figure, asked["methods"], {"options": asked["instead"]}))
        for ours in lines(figure, asked["methods"], where):
            here = {**ours[0]["options"], **asked["instead"]}
            same = lambda run: {**here, **run["options"], "label": here["label"]} == here  # noqa: B023, E731
            yield ours, [t for t in others if t[0]["m"] == ours[0]["m"] and same(t[0])]
    elif "methods" in asked:
        order = lambda line: (line[0]["case"], line[0]["m"])  # noqa: E731
        for _, some in groupby(
            sorted(lines(figure, asked["methods"], where), key=order), key=lambda x: x[0]["case"]
        ):
            yield from ((ours, [theirs]) for theirs, ours in pairwise(some))
    for one in asked.get("contests", []):
        for ours in lines(figure, one["methods"], where):
            rivals = [
                theirs
                for want in one["rivals"]
                for theirs in lines(figure, want, where)
                if theirs[0]["case"] == ours[0]["case"]
                and ("m" in want or theirs[0]["m"] in (None, ours[0]["m"]))
            ]
            if rivals:
                yield ours, rivals


def number(run, asked, goal):
    """What a claim compares, lower being better."""
    if run["lost"]:
        return 1.0 if asked["kind"] == "RisesLess" else np.inf
    if asked["kind"] == "RisesLess":
        ends = run["loss"][run["epoch"] == np.round(run["epoch"])]
        return np.mean(ends[1:] > ends[:-1] * (1 + 1e-9))
    if asked["kind"] == "Cheaper":
        spent = (run["oracle_calls"] + 0.5 * run["value_calls"]) * asked["tau"] + run["inner_steps"]
        return np.min(spent[run["loss"] <= goal], initial=np.inf)
    q = asked.get("quantity", {"column": "loss", "higher": False})
    values = run[q["column"]]
    if "share" in q:
        first, end = run["step"][0], run["step"][-1]
        late = run["step"] > min(first + round((1 - q["share"]) * (end - first)), end - 1)
        return np.exp(np.log(np.maximum(values[late], np.finfo(float).tiny)).mean())
    return values[~np.isnan(values)][-1] * (-1 if q["higher"] else 1)


def score(asked, ours, theirs):
    """1 if ours does what the claim says beside this rival, ½ if they are even, 0 if not."""
    kind, factor, margin = asked["kind"], asked.get("factor", 1.01), 0.0
    a, b = (number(run, asked, theirs["loss"][-1]) for run in (ours, theirs))
    if np.isinf(a) and np.isinf(b):
        return 0.5
    if kind == "NoDearer" and not np.isinf(a + b):
        counts = ("oracle_calls", "inner_steps", "forward_calls", "backward_calls")
        ends = [(float(ours[c][-1]), float(theirs[c][-1])) for c in counts if c in ours]
        a, b = max(1.0 if x == y else x / y if y > 0 else np.inf for x, y in ends), 1.0
    if kind in ("OnPar", "NoDearer"):
        return float(a <= factor * b)
    if kind in ("Cheaper", "RisesLess"):
        factor = 1
    elif asked.get("quantity", {}).get("higher"):
        factor, margin = 1, 0.01
    if factor > 1.01:
        return float((a * factor <= b) != asked.get("less", False))
    return 0.5 + 0.5 * (a < b / factor - margin) - 0.5 * (b < a / factor - margin)


def alone(asked, run):
    if asked["kind"] == "Attains":
        return np.nanmax(run["return_share"]) >= asked["share"]
    return (run["grad_norm"] < asked["level"]).any()


def judge(figure, asked):
    """The verdict, and the mean score or difference that goes with it; rows are cases, columns seeds."""
    kind, where, asks = asked["kind"], asked.get("where") or {}, asked.get("asks")
    if kind in ("Ratio", "Falls"):
        return timing(figure, asked, where), None
    if kind in ("Reaches", "ReachesOnSeveral", "Attains"):
        found = list(lines(figure, asked["methods"], where))
        scores = np.array([[alone(asked, run) for run in line] for line in found], float)
        if kind == "ReachesOnSeveral":
            cases = [np.array([line[0]["case"][k] for line in found]) for k in (0, 1)]
            scores = [[len(set(c[s > 0])) >= 2 for s in scores.T] for c in cases]
    else:
        found, rivals = zip(*contests(figure, asked, where), strict=True)
        pick, scores = max if asked.get("either") else min, []
        for ours, beside in zip(found, rivals, strict=True):
            seeds = zip(ours, *beside, strict=True)
            scores.append([pick(score(asked, a, b) for b in others) for a, *others in seeds])
    each = np.mean(scores, axis=0)
    if "quieter" in asked:
        quiet = np.array([line[0]["size"] in asked["quieter"] for line in found])
        each = np.mean(np.array(scores)[quiet], axis=0) - np.mean(np.array(scores)[~quiet], axis=0)
        return verdict(each.min() > 0, each.max() >= 0), each.mean()
    partly = each.max() >= 0.5 if asks else each.max() > 0
    found = verdict(each.min() > asks or each.min() == 1, partly)
    return "false as stated" if asks == 1 and found != "holds" else found, each.mean()


def verdict(holds, partly):
    return "holds" if holds else "mixed" if partly else "does not hold"


def timing(figure, asked, where):
    """Claims about the time of a round: beside SGD's, or of gathering its states beside the update."""
    if asked.get("says_of_a_machine"):
        return "measured here"
    options = where.get("options") or {"gatherer": asked["gatherer"]}
    both = ("gathering_time", "updating_time")
    time = lambda run, names=both: np.median(sum(run[n][1:] for n in names))  # noqa: E731
    wants = ({"name": name, "panel": "main"} for name in ("sgd", "sso"))
    sgd, sso = ([*lines(figure, want, {"options": options})] for want in wants)
    sgd = {line[0]["size"]: line for line in sgd}
    ratio = {
        (line[0]["m"], line[0]["size"]): [
            time(a) / time(b) for a, b in zip(line, sgd[line[0]["size"]], strict=True)
        ]
        for line in sso
    }
    if asked["kind"] == "Falls":
        steps = [np.less(ratio[b], ratio[a]) for a, b in pairwise(sorted(ratio)) if a[0] == b[0]]
        return verdict(np.all(steps), np.mean(steps) >= 0.5)
    plain = [time(run, both[:1]) / time(run, both[1:]) for run in sgd[asked["states"]]]
    values = np.array(ratio[asked["m"], asked["states"]] if "m" in asked else plain)
    inside = (asked["low"] <= values) & (values <= asked["high"])
    return verdict(inside.all(), inside.any())


if __name__ == "__main__":
    wrong = checked = elsewhere = 0
    for path in sorted(HERE.glob("*/curves.parquet")):
        for entry in json.loads((path.parent / "verdicts.json").read_text()):
            if not entry.get("asked"):
                elsewhere += entry["verdict"] != "not judged"
                continue
            found, share = judge(path.parent.name, entry["asked"])
            said = entry["numbers"].get("share", entry["numbers"].get("difference"))
            same = found == entry["verdict"] and (share is None or abs(share - said) < 1e-9)
            checked, wrong = checked + 1, wrong + (not same)
            if not same:
                print(path.parent.name, entry, "recomputed:", found, share)
    print(
        f"{checked} verdicts recomputed, {wrong} differ; {elsewhere} were judged where they were run"
    )
    sys.exit(wrong > 0)
