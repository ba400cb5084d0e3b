"use strict";
// The page: reads the embedded curves, answers the controls, and draws.

(() => {
  const source = document.getElementById("report-data");
  if (source === null) return;
  const data = JSON.parse(source.textContent);
  const byId = (id) => document.getElementById(id);
  const LABELS = {
    oracle_calls: "oracle calls", inner_steps: "inner steps", epoch: "epochs", wall_time: "wall time (s)", cost: "modelled cost",
  };
  const state = {
    panel: data.open.panel, metric: data.open.metric, axis: data.open.axis, tau: data.open.tau,
    band: "quartiles", middle: data.open.middle, xLog: true, yLog: data.log[data.open.metric], seeds: false, hidden: new Set(data.open.hidden), at: null,
  };

  // ---- theme -------------------------------------------------------------------------------------------

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
  function sayTheme() {
    byId("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Switch to the ${theme() === "dark" ? "light" : "dark"} page`);
  }
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
    render();
  });
  dark.addEventListener("change", () => render());

  // ---- curves ------------------------------------------------------------------------------------------

  // Nothing finite was recorded (nan, inf): as bad as it gets, so that a band never hides a lost seed.
  const worst = (metric) => (data.better[metric] === "higher" ? -Infinity : Infinity);
  const column = (run, name) => data.pool[run.columns[name]];

  function xs(run) {
    if (state.axis !== "cost") return column(run, state.axis);
    const inner = column(run, "inner_steps");
    return column(run, "calls").map((calls, i) => calls * state.tau + inner[i]); // a value counts as half a call
  }

  function readings(line) {
    return line.runs.filter((run) => run.columns[state.metric] !== undefined).map((run) => {
      const y = column(run, state.metric).map((value) => (value === null ? worst(state.metric) : value));
      return { x: xs(run), y, over: run.diverged ? worst(state.metric) : y[y.length - 1] };
    });
  }

  function curves(panel, only) {
    const lines = data.panels[panel].lines.filter((line) => !state.hidden.has(line.method) && (!only || only(line.method)));
    return lines.map((line) => {
      const runs = readings(line);
      const curve = aggregate(runs, state.band, state.middle);
      return { ...curve, method: line.method, style: data.methods[line.method].style, traces: state.seeds ? runs : [] };
    }).filter((curve) => curve.x.length > 0);
  }

  function view(all, small) {
    const starts = all.map((curve) => curve.mid[0]).filter(Number.isFinite);
    const lower = data.better[state.metric] === "lower" && starts.length > 0;
    const top = Math.max(...starts);
    return {
      curves: all, xLog: state.xLog, yLog: state.yLog, small, theme: theme(),
      ceiling: lower ? (state.yLog ? 2 * top : top + 0.5 * Math.abs(top)) : undefined,
      xTitle: state.axis === "cost" ? `modelled cost: (oracle calls + ½ values) × ${format(state.tau)} + inner steps` : LABELS[state.axis],
      yTitle: state.metric.replaceAll("_", " "),
    };
  }

  // Few lines are named where they end; many would hide each other, and the legend has their names.
  function labelled(all) {
    if (all.length > 6) return null;
    return new Map(all.map((curve) => [curve.method, data.methods[curve.method].label]));
  }

  // ---- the large chart ---------------------------------------------------------------------------------

  const chart = byId("chart");
  let drawn = null;

  function drawChart() {
    const width = Math.max(chart.parentElement.clientWidth, 240);
    const height = Math.max(Math.min(0.62 * width, 480), 280);
    const all = curves(state.panel);
    drawn = draw(chart, width, height, { ...view(all, false), labels: labelled(all) });
    chart.style.height = `${height}px`;
    const hiddenPoints = all.reduce((sum, c) => sum + c.mid.filter((v) => state.yLog && v <= 0).length, 0);
    const lost = all.filter((c) => !Number.isFinite(c.over)).map((c) => data.methods[c.method].label);
    const notes = [];
    if (hiddenPoints) notes.push(`${hiddenPoints} point(s) at or below 0 have no place on the log axis: choose the linear one to see them.`);
    if (lost.length) notes.push(`Diverged: ${lost.join(", ")}.`);
    byId("chart-note").textContent = notes.join(" ");
    const panel = data.panels[state.panel];
    chart.setAttribute("aria-label", `${state.metric} against ${view([], false).xTitle} on ${panel.title}: ${all.length} curves. Arrow keys read the values.`);
    readout();
  }

  // Index of the recorded point nearest to the cursor; the last one when there is no cursor.
  function nearest(curve) {
    if (state.at === null || drawn === null) return curve.x.length - 1;
    let best = 0;
    curve.x.forEach((x, i) => {
      if (Math.abs(drawn.px(x) - state.at) < Math.abs(drawn.px(curve.x[best]) - state.at)) best = i;
    });
    return best;
  }

  function readout() {
    for (const old of chart.querySelectorAll(".cursor")) old.remove();
    if (drawn !== null && state.at !== null) {
      const { box } = drawn;
      const bottom = chart.viewBox.baseVal.height - box.bottom;
      svg("line", { x1: state.at, x2: state.at, y1: box.top, y2: bottom, class: "cursor" }, chart);
    }
    const shown = new Map((drawn ? drawn.shown : []).map((curve) => [curve.method, curve]));
    byId("readout-where").textContent = state.at === null || drawn === null ? "at the end" : `near ${format(drawn.px.invert(state.at), 3)}`;
    for (const row of byId("legend").rows) {
      const curve = shown.get(Number(row.dataset.method));
      const [x, value, band] = ["x", "value", "band"].map((name) => row.querySelector(`.${name}`));
      if (!curve || curve.x.length === 0) {
        for (const cell of [x, value, band]) cell.textContent = "";
        continue;
      }
      const i = nearest(curve);
      x.textContent = format(curve.x[i], 5);
      if (state.at === null && !Number.isFinite(curve.over)) {
        value.textContent = "diverged";
        band.textContent = "";
        continue;
      }
      value.textContent = format(curve.mid[i]);
      band.textContent = curve.seeds > 1 && state.band !== "none" ? `${format(curve.low[i], 3)} … ${format(curve.high[i], 3)}` : "";
      if (state.at !== null && Number.isFinite(curve.mid[i]) && !(state.yLog && curve.mid[i] <= 0)) {
        const y = drawn.py(curve.mid[i]);
        svg("circle", { cx: drawn.px(curve.x[i]), cy: y, r: 4, class: "cursor", fill: curve.style[theme()] }, chart);
      }
    }
  }

  function pointAt(event) {
    if (drawn === null) return;
    const frame = chart.getBoundingClientRect();
    const x = ((event.clientX - frame.left) / frame.width) * chart.viewBox.baseVal.width;
    state.at = Math.max(drawn.box.left, Math.min(x, chart.viewBox.baseVal.width - drawn.box.right));
    readout();
  }
  chart.addEventListener("pointermove", pointAt);
  chart.addEventListener("pointerdown", pointAt);
  chart.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "mouse") return; // a finger that lifts leaves the values to be read
    state.at = null;
    readout();
  });
  chart.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { state.at = null; readout(); return; }
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (direction === undefined || drawn === null) return;
    event.preventDefault();
    const stops = [...new Set(drawn.shown.flatMap((curve) => curve.x.map((x) => drawn.px(x))))].sort((a, b) => a - b);
    const here = state.at === null ? (direction > 0 ? -Infinity : Infinity) : state.at;
    const next = direction > 0 ? stops.find((s) => s > here + 0.5) : stops.findLast((s) => s < here - 0.5);
    if (next !== undefined) state.at = next;
    readout();
  });

  // ---- the legend, which is also the table of values ---------------------------------------------------

  function swatch(parent, style) {
    const picture = svg("svg", { viewBox: "0 0 34 12", class: "swatch", "aria-hidden": "true" }, parent);
    svg("path", { d: "M1,6H33", stroke: style[theme()], "stroke-dasharray": style.dash.join(" "), "stroke-width": 2.2, fill: "none" }, picture);
    svg("path", { d: MARKER[style.marker], transform: "translate(17 6)", fill: style[theme()] }, picture);
  }

  function drawLegend() {
    const present = new Set(data.panels[state.panel].lines.map((line) => line.method));
    const focused = document.activeElement && document.activeElement.closest("#legend tr");
    const keep = focused ? focused.dataset.method : null;
    byId("legend").replaceChildren();
    data.methods.forEach((method, index) => {
      if (!present.has(index)) return;
      const row = byId("legend").insertRow();
      row.dataset.method = index;
      const head = document.createElement("th");
      head.scope = "row";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "method";
      button.setAttribute("aria-pressed", String(!state.hidden.has(index)));
      swatch(button, method.style);
      button.appendChild(document.createElement("span")).textContent = method.label;
      button.addEventListener("click", () => {
        if (!state.hidden.delete(index)) state.hidden.add(index);
        render();
      });
      head.appendChild(button);
      row.appendChild(head);
      for (const name of ["value", "band", "x"]) row.insertCell().className = name;
      if (keep === String(index)) button.focus();
    });
  }

  // ---- small multiples ---------------------------------------------------------------------------------

  const grid = byId("multiples");

  // Rows of panels; with a single batch size each, problems (or rules) stand side by side in one row.
  function multiples() {
    const panelsOf = (problem) => data.panels.flatMap((panel, index) => (panel.problem === problem ? [index] : []));
    const here = data.panels[state.panel].problem;
    const byRule = byId("rows").value === "rules";
    const rows = byRule
      ? data.rules.map((rule) => ({ title: rule.title, problem: here, only: (method) => rule.methods.includes(method) }))
      : data.problems.map((title, problem) => ({ title, problem }));
    if (rows.every((row) => panelsOf(row.problem).length === 1)) {
      const cells = rows.map((row) => {
        const [index] = panelsOf(row.problem);
        return { index, only: row.only, title: byRule ? row.title : data.panels[index].title };
      });
      return [{ title: byRule ? data.panels[state.panel].title : "", cells }];
    }
    const batches = data.batches.map((title, batch) => ({ title, batch }))
      .filter(({ batch }) => data.panels.some((panel) => panel.batch === batch && (!byRule || panel.problem === here)));
    return rows.map((row) => ({
      title: row.title,
      cells: batches.map(({ title, batch }) => ({ index: panelOf(row.problem, batch), only: row.only, title })),
    }));
  }

  function drawMultiples() {
    const rows = multiples();
    grid.replaceChildren();
    grid.style.setProperty("--columns", rows.length > 1 ? rows[0].cells.length : Math.min(rows[0].cells.length, 4));
    rows.forEach((row, r) => {
      const title = document.createElement("h4");
      title.textContent = row.title;
      if (row.title) grid.appendChild(title);
      row.cells.forEach(({ index, only, title: heading }, c) => {
        const cell = document.createElement("button");
        cell.type = "button";
        cell.className = "cell";
        grid.appendChild(cell);
        cell.appendChild(document.createElement("span")).textContent = heading;
        if (index < 0) {
          cell.disabled = true;
          return;
        }
        cell.setAttribute("aria-label", `Show ${data.panels[index].title} in the large chart`);
        cell.setAttribute("aria-pressed", String(index === state.panel && !only));
        const picture = svg("svg", { id: `multiple-${r}-${c}`, "aria-hidden": "true" }, cell);
        const width = Math.max(cell.clientWidth - 12, 150);
        draw(picture, width, Math.round(0.68 * width), view(curves(index, only), true));
        cell.addEventListener("click", () => {
          state.panel = index;
          state.at = null;
          render();
          chart.scrollIntoView({ block: "center" });
        });
      });
    });
  }

  function panelOf(problem, batch) {
    return data.panels.findIndex((panel) => panel.problem === problem && panel.batch === batch);
  }

  // ---- cost of reaching a common level, against τ ------------------------------------------------------

  const TAUS = Array.from({ length: 81 }, (_, k) => 10 ** (k / 20));

  function drawCost() {
    const panel = data.panels[state.panel];
    byId("cost").hidden = panel.goal === null;
    if (panel.goal === null) return;
    const metric = data.open.metric;
    const sign = data.better[metric] === "higher" ? "≥" : "≤";
    byId("cost-goal").textContent = `${panel.title}: modelled cost, (oracle calls + ½ values) × τ + inner steps, until ${metric.replaceAll("_", " ")} ${sign} ${format(panel.goal, 3)} ` +
      "for the first time; median over seeds. About half of the methods get there; the others are not drawn.";
    const reaching = panel.lines.filter((line) => !state.hidden.has(line.method)).map((line) => {
      const cost = (tau) => quantile(line.reach.map((spent) => (spent ? spent[0] * tau + spent[1] : Infinity)).sort((a, b) => a - b), 0.5);
      const mid = line.reach.length ? TAUS.map(cost) : [Infinity];
      return { method: line.method, style: data.methods[line.method].style, x: TAUS, mid, low: mid, high: mid, seeds: 1 };
    }).filter((curve) => curve.mid.every(Number.isFinite));
    const picture = byId("cost-chart");
    const width = Math.max(picture.parentElement.clientWidth, 240);
    const height = Math.max(Math.min(0.45 * width, 380), 260);
    picture.style.height = `${height}px`;
    const placed = draw(picture, width, height, {
      curves: reaching, xLog: true, yLog: true, small: false, theme: theme(), labels: labelled(reaching), xTitle: "τ, cost of one oracle call in inner steps", yTitle: "modelled cost",
    });
    if (placed) {
      const { px, box } = placed;
      svg("line", { x1: px(state.tau), x2: px(state.tau), y1: box.top, y2: height - box.bottom, class: "cursor" }, picture);
    }
    const ranges = [];
    if (reaching.length > 0) {
      TAUS.forEach((tau, k) => {
        const best = reaching.reduce((a, b) => (b.mid[k] < a.mid[k] ? b : a)).method;
        const last = ranges[ranges.length - 1];
        if (last && last.method === best) last.to = tau;
        else ranges.push({ method: best, from: tau, to: tau });
      });
    }
    const say = ({ method, to }, k) => {
      const { label } = data.methods[method];
      if (ranges.length === 1) return `${label} at every τ`;
      return k === ranges.length - 1 ? label : `${label} up to τ ≈ ${format(Math.sqrt(to * ranges[k + 1].from), 2)}`;
    };
    byId("cost-winners").textContent = ranges.length ? `Cheapest: ${ranges.map(say).join(", then ")}.` : "";
    picture.setAttribute("aria-label", `Modelled cost against τ on ${panel.title}. ${byId("cost-winners").textContent}`);
  }

  // ---- performance profiles ----------------------------------------------------------------------------

  // As targetopt.lab.statistics.profiles: panels on which all methods shown have every seed.
  function drawProfile() {
    const methods = data.methods.map((_, index) => index).filter((index) => !state.hidden.has(index));
    const costs = data.panels.filter((panel) => panel.goal !== null).map((panel) => methods.map((method) => {
      const line = panel.lines.find((each) => each.method === method);
      return line ? line.reach.map((spent) => (spent ? Math.max(spent[0] * state.tau + spent[1], state.tau) : Infinity)) : [];
    }));
    const same = costs.filter((panel) => panel.length > 0 && panel.every((seeds) => seeds.length > 0 && seeds.length === panel[0].length));
    const most = Math.max(...same.map((panel) => panel[0].length));
    const whole = same.filter((panel) => panel[0].length === most);
    byId("profile").hidden = data.panels.length < 2;
    const picture = byId("profile-chart");
    picture.parentElement.hidden = whole.length < 2;
    if (whole.length < 2) {
      byId("profile-note").textContent = "Nothing to sum up: the methods shown have not all ended on two or more problems or batch sizes.";
      return;
    }
    byId("profile-note").textContent = `How often a method reaches the level of its panel at nearly the lowest cost, τ = ${format(state.tau)}: the share of its runs that cost at most ` +
      `a factor of the cheapest method's median, over the ${whole.length} panels on which all methods shown were run. At the left: how often it is the cheapest; at the right: how often it gets there at all.`;
    const { factors, shares } = profiles(whole);
    const widest = Math.max(factors[factors.length - 1], 2) * 1.1;
    const stairs = methods.map((method, m) => {
      const x = [...factors, widest].flatMap((factor) => [factor, factor]).slice(1);
      const mid = [...shares[m], shares[m][factors.length - 1]].flatMap((share) => [share, share]).slice(0, -1);
      return { method, style: data.methods[method].style, x, mid, low: mid, high: mid, seeds: 1 };
    });
    const width = Math.max(picture.parentElement.clientWidth, 240);
    const height = Math.max(Math.min(0.45 * width, 380), 260);
    picture.style.height = `${height}px`;
    draw(picture, width, height, {
      curves: stairs, xLog: true, yLog: false, small: false, theme: theme(), xTitle: "cost / lowest cost", yTitle: "share of the runs",
    });
    const first = methods.map((method, m) => `${data.methods[method].label} ${format(100 * shares[m][0], 3)} %`).join(", ");
    picture.setAttribute("aria-label", `Performance profiles over ${whole.length} panels. Cheapest: ${first}.`);
  }

  // ---- what the tuned values were worth ----------------------------------------------------------------

  function drawSensitivity() {
    const picture = byId("sensitivity-chart");
    if (picture === null) return;
    const here = data.tried.filter((each) => each.panel === state.panel);
    const option = here.length ? here[0].option : null;
    const lines = here.filter((each) => each.option === option);
    picture.parentElement.hidden = lines.length === 0;
    const { title } = data.panels[state.panel];
    byId("sensitivity-note").textContent = lines.length
      ? `${title}: where the trials ended for each value of ${option}. A ring marks the value that was chosen; a diverged trial leaves a gap.`
      : `${title}: nothing was tuned here.`;
    if (lines.length === 0) return;
    const { metric } = lines[0];
    const all = lines.map((each) => {
      const mid = each.finals.map((final) => (final === null ? NaN : final));
      return { method: each.method, style: data.methods[each.method].style, x: each.values, mid, low: mid, high: mid, seeds: 1 };
    });
    const width = Math.max(picture.parentElement.clientWidth, 240);
    const height = Math.max(Math.min(0.45 * width, 380), 260);
    picture.style.height = `${height}px`;
    const placed = draw(picture, width, height, {
      curves: all, xLog: true, yLog: data.log[metric] ?? false, small: false, theme: theme(), labels: labelled(all),
      xTitle: option, yTitle: `final ${metric.replaceAll("_", " ")}`,
    });
    if (placed === null) return;
    for (const each of lines) {
      const final = each.finals[each.values.indexOf(each.chosen)];
      if (final === null || (placed.py.log && final <= 0)) continue;
      svg("circle", { cx: placed.px(each.chosen), cy: placed.py(final), r: 7, class: "ring", stroke: data.methods[each.method].style[theme()] }, picture);
    }
    picture.setAttribute("aria-label", `Final ${metric} of trials against ${option} on ${title}: ${lines.length} lines.`);
  }

  // ---- controls ----------------------------------------------------------------------------------------

  function options(select, entries) {
    for (const [value, label] of entries) {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = label;
      select.appendChild(option);
    }
  }
  options(byId("panel"), data.panels.map((panel, index) => [index, panel.title]));
  options(byId("metric"), data.metrics.map((name) => [name, name.replaceAll("_", " ")]));
  options(byId("axis"), data.axes.map((name) => [name, LABELS[name]]));
  if (data.rules.length < 2) byId("rows").parentElement.hidden = true;

  const bound = (value) => Math.min(Math.max(value, 1), 1e4);
  function setTau(tau) {
    state.tau = bound(tau);
    if (data.axes.includes("cost")) state.axis = "cost";
    state.at = null;
    render();
  }
  byId("tau").addEventListener("input", (event) => setTau(Number((10 ** Number(event.target.value)).toPrecision(3))));
  byId("tau-number").addEventListener("change", (event) => setTau(Number(event.target.value) || 1));
  const onChange = (id, act) => byId(id).addEventListener("change", (event) => { act(event.target); state.at = null; render(); });
  onChange("panel", (field) => { state.panel = Number(field.value); });
  onChange("metric", (field) => { state.metric = field.value; state.yLog = data.log[field.value]; });
  onChange("axis", (field) => { state.axis = field.value; });
  onChange("middle", (field) => { state.middle = field.value; });
  onChange("band", (field) => { state.band = field.value; });
  onChange("x-log", (field) => { state.xLog = field.checked; });
  onChange("y-log", (field) => { state.yLog = field.checked; });
  onChange("seeds", (field) => { state.seeds = field.checked; });
  onChange("rows", () => {});
  byId("show-all").addEventListener("click", () => { state.hidden.clear(); render(); });

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const command = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = "Copied";
      } catch {
        // No clipboard for this page: select the text, so that one keystroke copies it.
        window.getSelection().selectAllChildren(command);
        button.textContent = "Selected";
      }
      window.setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  function colourTable() {
    for (const place of document.querySelectorAll("[data-swatch]")) {
      place.replaceChildren();
      swatch(place, data.methods[Number(place.dataset.swatch)].style);
    }
  }

  function render() {
    sayTheme();
    byId("panel").value = String(state.panel);
    byId("metric").value = state.metric;
    byId("axis").value = state.axis;
    byId("middle").value = state.middle;
    byId("tau").value = String(Math.log10(state.tau));
    byId("tau").setAttribute("aria-valuetext", `τ = ${format(state.tau)}`);
    byId("tau-number").value = String(state.tau);
    byId("x-log").checked = state.xLog;
    byId("y-log").checked = state.yLog;
    byId("readout-x").textContent = state.axis === "cost" ? "cost" : LABELS[state.axis];
    byId("readout-y").textContent = state.metric.replaceAll("_", " ");
    drawLegend();
    drawChart();
    drawMultiples();
    drawCost();
    drawProfile();
    drawSensitivity();
    colourTable();
  }

  new ResizeObserver(() => { drawChart(); drawMultiples(); drawCost(); drawProfile(); drawSensitivity(); }).observe(chart.parentElement);
  render();
})();
