"use strict";
// Numbers, scales and one drawing function. Nothing here knows of the page's controls.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (parent) parent.appendChild(node);
  return node;
}

// ---- numbers -------------------------------------------------------------------------------------------

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function power(exponent) {
  return "10" + String(exponent).replace(/./g, (c) => SUPERSCRIPT[c]);
}

function grouped(integer) {
  return String(integer).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

// Counts in full, everything else to `digits` significant digits.
function format(value, digits = 4) {
  if (value === null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) {
    return (value < 0 ? "−" : "") + grouped(Math.abs(value));
  }
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(digits))).replace("-", "−");
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}·${power(Number(exponent))}`.replace("-", "−");
}

function quantile(sorted, q) {
  const position = q * (sorted.length - 1);
  const low = Math.floor(position);
  const high = Math.ceil(position);
  if (low === high || sorted[low] === sorted[high]) return sorted[low];
  return sorted[low] + (position - low) * (sorted[high] - sorted[low]);
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// ---- curves over seeds ---------------------------------------------------------------------------------

// A run is {x, y, over}: x ascending; `over` is what holds after the last record (its last value, or the
// worst there is if the run diverged). At any x a run is worth its last record at or before x.
function aggregate(runs, band, middle) {
  const usable = runs.filter((run) => run.x.length > 0);
  if (usable.length === 0) return { x: [], mid: [], low: [], high: [], seeds: 0, over: NaN };
  const start = Math.max(...usable.map((run) => run.x[0]));
  const every = new Set();
  for (const run of usable) for (const x of run.x) if (x >= start) every.add(x);
  const grid = Float64Array.from(every).sort();
  const between = (sorted) => (middle === "mean" ? mean(sorted) : quantile(sorted, 0.5));
  const over = between(usable.map((run) => run.over).sort((a, b) => a - b));
  const curve = { x: Array.from(grid), mid: [], low: [], high: [], seeds: usable.length, over };
  const [below, above] = { quartiles: [0.25, 0.75], range: [0, 1], none: [0.5, 0.5] }[band];
  const cursor = usable.map(() => 0);
  for (const x of grid) {
    const values = usable.map((run, k) => {
      while (cursor[k] + 1 < run.x.length && run.x[cursor[k] + 1] <= x) cursor[k] += 1;
      const ended = x > run.x[run.x.length - 1];
      return ended ? run.over : run.y[cursor[k]];
    });
    values.sort((a, b) => a - b);
    curve.mid.push(between(values));
    curve.low.push(quantile(values, below));
    curve.high.push(quantile(values, above));
  }
  return curve;
}

// Performance profiles: panels[p][m] holds the costs of the seeds of method m on panel p, Infinity where the level
// was not reached. Of each method the share of runs that cost at most a factor of the cheapest median.
function profiles(panels) {
  const methods = panels[0].map((_, m) => panels.map((panel) => {
    const middles = panel.map((costs) => quantile([...costs].sort((a, b) => a - b), 0.5));
    const best = Math.min(...middles);
    return panel[m].map((cost) => cost / best); // NaN, if both are infinite, is no share of anything
  }));
  const beyond = methods.flat(2).filter((ratio) => Number.isFinite(ratio) && ratio > 1);
  const factors = [...new Set([1, ...beyond])].sort((a, b) => a - b);
  const share = (ratios, factor) => mean(ratios.map((seeds) => mean(seeds.map((ratio) => Number(ratio <= factor)))));
  return { factors, shares: methods.map((ratios) => factors.map((factor) => share(ratios, factor))) };
}

// ---- scales --------------------------------------------------------------------------------------------

function scale(domain, range, log) {
  let [from, to] = domain;
  if (log) [from, to] = [Math.log10(from), Math.log10(to)];
  const slope = (range[1] - range[0]) / (to - from);
  const place = (value) => range[0] + ((log ? Math.log10(value) : value) - from) * slope;
  place.log = log;
  place.domain = domain;
  place.invert = (pixel) => {
    const value = from + (pixel - range[0]) / slope;
    return log ? 10 ** value : value;
  };
  return place;
}

function tickText(value) {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  const mantissa = Number((value / 10 ** exponent).toPrecision(2));
  if (Math.abs(exponent) <= 3) return format(Number(value.toPrecision(2)));
  return mantissa === 1 ? power(exponent) : `${mantissa}·${power(exponent)}`;
}

function ticks(place, room) {
  const [from, to] = place.domain;
  const major = [];
  const minor = [];
  if (place.log) {
    const first = Math.ceil(Math.log10(from) - 1e-9);
    const last = Math.floor(Math.log10(to) + 1e-9);
    const stride = Math.max(1, Math.ceil((last - first + 1) / Math.max(room, 2)));
    for (let e = first; e <= last; e += 1) {
      if ((e - first) % stride === 0) major.push([10 ** e, tickText(10 ** e)]);
      else minor.push(10 ** e);
    }
    if (stride === 1) {
      const sparse = major.length < 3 && room > 2;
      for (let e = first - 1; e <= last; e += 1) {
        for (let k = 2; k <= 9; k += 1) {
          const value = k * 10 ** e;
          if (value < from || value > to) continue;
          if (sparse && (k === 2 || k === 5)) major.push([value, tickText(value)]);
          else minor.push(value);
        }
      }
    }
    if (major.length >= 2 || to / from >= 10) return { major, minor };
  }
  const raw = (to - from) / Math.max(room, 2);
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].find((k) => k * magnitude >= raw) * magnitude;
  major.length = 0;
  for (let k = Math.ceil(from / unit - 1e-9); k * unit <= to + 1e-9 * unit; k += 1) {
    const value = Number((k * unit).toPrecision(12));
    const label = Math.abs(value) >= 1e4 && Number.isInteger(value) ? compact(value) : format(value, 6);
    major.push([value, label]);
  }
  return { major, minor };
}

function compact(value) {
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return format(value / unit, 4) + letter;
  }
  return format(value);
}

// The interval an axis shows. Where smaller is better, a curve that explodes must not flatten the others:
// the top stays within a factor of two (log) or a half (linear) above where the curves began.
function extent(curves, pick, log, ceiling) {
  let low = Infinity;
  let high = -Infinity;
  for (const curve of curves) {
    for (const key of pick) {
      for (const value of curve[key]) {
        if (!Number.isFinite(value) || (log && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  if (low > high) return null;
  if (ceiling !== undefined && Number.isFinite(ceiling)) high = Math.max(Math.min(high, ceiling), low);
  if (low === high) return log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low, high];
}

function padded([low, high], log, share) {
  if (log) {
    const factor = (high / low) ** share;
    return [low / factor, high * factor];
  }
  return [low - share * (high - low), high + share * (high - low)];
}

// ---- drawing -------------------------------------------------------------------------------------------

const MARKER = {
  circle: "M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0Z",
  square: "M-2.9,-2.9h5.8v5.8h-5.8Z",
  triangle: "M0,-3.8L3.5,2.6H-3.5Z",
  diamond: "M0,-4.2L3.6,0L0,4.2L-3.6,0Z",
  down: "M0,3.8L3.5,-2.6H-3.5Z",
  plus: "M-1.1,-3.6h2.2v2.5h2.5v2.2h-2.5v2.5h-2.2v-2.5h-2.5v-2.2h2.5Z",
  cross: "M-3.4,-1.9L-1.9,-3.4L0,-1.5L1.9,-3.4L3.4,-1.9L1.5,0L3.4,1.9L1.9,3.4L0,1.5L-1.9,3.4L-3.4,1.9L-1.5,0Z",
  star: "M0,-4.4L1.2,-1.4L4.2,-1.3L1.9,0.6L2.7,3.7L0,2L-2.7,3.7L-1.9,0.6L-4.2,-1.3L-1.2,-1.4Z",
};

const round = (pixel) => Math.round(pixel * 10) / 10;

const LETTERS = 26; // of a label at the end of a line
const APART = 14; // pixels between two such labels

// Where labels stand that would like to stand at `wanted`: in order, far enough from each other, inside the frame.
function spread(wanted, top, bottom) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const places = order.map((i) => Math.min(Math.max(wanted[i], top), bottom));
  for (let k = 1; k < places.length; k += 1) places[k] = Math.max(places[k], places[k - 1] + APART);
  let limit = bottom;
  for (let k = places.length - 1; k >= 0; k -= 1) {
    places[k] = Math.min(places[k], limit);
    limit = places[k] - APART;
  }
  const found = [];
  order.forEach((i, k) => { found[i] = places[k]; });
  return found;
}

// Draws `view` into the svg element and returns the two scales (null when there is nothing to draw).
// view: {curves: [{method, style, x, mid, low, high, traces}], xLog, yLog, xTitle, yTitle, small, ceiling, theme, labels}
function draw(element, width, height, view) {
  element.replaceChildren();
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const text = view.small ? 10 : 12.5;
  const box = view.small
    ? { left: 38, right: 6, top: 8, bottom: 20 }
    : { left: 62, right: 16, top: 12, bottom: 50 };
  const named = view.labels && !view.small && width >= 520 ? view.labels : null;
  if (named) box.right = Math.min(14 + 6.4 * Math.max(...[...named.values()].map((label) => Math.min(label.length, LETTERS))), 0.3 * width);
  // A log axis has no place for 0 (the start) and below.
  const shown = view.curves.map((curve) => {
    const keep = curve.x.map((x, i) => i).filter((i) => !view.xLog || curve.x[i] > 0);
    const part = (key) => keep.map((i) => curve[key][i]);
    return { ...curve, x: part("x"), mid: part("mid"), low: part("low"), high: part("high") };
  });
  const xRange = extent(shown, ["x"], view.xLog);
  const yRange = extent(shown, ["mid"], view.yLog, view.ceiling);
  if (xRange === null || yRange === null) {
    const message = svg("text", { x: width / 2, y: height / 2, class: "nothing", "font-size": text }, element);
    message.textContent = view.curves.length ? "nothing to draw on these axes" : "no curve";
    return null;
  }
  const px = scale(padded(xRange, view.xLog, 0.02), [box.left, width - box.right], view.xLog);
  const py = scale(padded(yRange, view.yLog, 0.05), [height - box.bottom, box.top], view.yLog);

  const axes = svg("g", { class: "axes", "font-size": text }, element);
  const horizontal = ticks(px, (width - box.left) / (view.small ? 45 : 80));
  const vertical = ticks(py, (height - box.bottom) / (view.small ? 28 : 48));
  for (const value of view.small ? [] : horizontal.minor) {
    svg("line", { x1: px(value), x2: px(value), y1: height - box.bottom, y2: height - box.bottom + 3, class: "tick" }, axes);
  }
  for (const value of view.small ? [] : vertical.minor) {
    svg("line", { x1: box.left - 3, x2: box.left, y1: py(value), y2: py(value), class: "tick" }, axes);
  }
  for (const [value, label] of horizontal.major) {
    svg("line", { x1: px(value), x2: px(value), y1: box.top, y2: height - box.bottom, class: "grid" }, axes);
    svg("text", { x: px(value), y: height - box.bottom + text + 4, "text-anchor": "middle" }, axes).textContent = label;
  }
  for (const [value, label] of vertical.major) {
    svg("line", { x1: box.left, x2: width - box.right, y1: py(value), y2: py(value), class: "grid" }, axes);
    svg("text", { x: box.left - 6, y: py(value) + 0.35 * text, "text-anchor": "end" }, axes).textContent = label;
  }
  svg("path", { d: `M${box.left},${box.top}V${height - box.bottom}H${width - box.right}`, class: "frame" }, axes);
  if (!view.small) {
    svg("text", { x: (box.left + width - box.right) / 2, y: height - 9, "text-anchor": "middle", class: "title" }, axes)
      .textContent = view.xTitle;
    svg("text", { transform: `translate(14 ${(box.top + height - box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "title" }, axes)
      .textContent = view.yTitle;
  }

  const clip = `clip-${element.id}`;
  svg("rect", { x: box.left, y: box.top - 3, width: width - box.left - box.right, height: height - box.top - box.bottom + 3 },
    svg("clipPath", { id: clip }, svg("defs", {}, element)));
  const ink = svg("g", { "clip-path": `url(#${clip})` }, element);
  // Outside the frame is as far as a pixel may go: infinities and, on a log axis, zeros end there.
  const clamp = (value) => {
    if (Number.isNaN(value)) return NaN;
    const pixel = view.yLog && value <= 0 ? Infinity : py(value);
    return round(Math.max(-height, Math.min(2 * height, pixel)));
  };
  for (const curve of shown) {
    if (curve.seeds < 2) continue;
    const points = curve.x.map((x, i) => [round(px(x)), clamp(curve.low[i]), clamp(curve.high[i])])
      .filter((p) => !Number.isNaN(p[1]) && !Number.isNaN(p[2]));
    if (points.length < 2) continue;
    const upper = points.map((p) => `${p[0]},${p[2]}`).join("L");
    const lower = points.reverse().map((p) => `${p[0]},${p[1]}`).join("L");
    svg("path", { d: `M${upper}L${lower}Z`, fill: curve.style[view.theme], class: "band" }, ink);
  }
  for (const curve of shown) {
    for (const trace of curve.traces || []) line(trace.x, trace.y, { class: "trace" }, curve);
    const g = svg("g", { class: "line", "data-method": curve.method }, ink);
    line(curve.x, curve.mid, {}, curve, g);
    if (!view.small) marks(curve, g);
  }

  if (named) {
    const ends = shown.map((curve) => {
      const last = curve.mid.findLastIndex((value) => !Number.isNaN(clamp(value)));
      return last < 0 ? null : { curve, y: clamp(curve.mid[last]) };
    }).filter((end) => end !== null);
    const places = spread(ends.map((end) => end.y), box.top + 6, height - box.bottom - 4);
    const names = svg("g", { class: "names", "font-size": 11.5 }, element);
    ends.forEach(({ curve }, i) => {
      const label = named.get(curve.method);
      const name = svg("text", { x: width - box.right + 6, y: places[i] + 4, "data-method": curve.method, fill: curve.style[view.theme] }, names);
      name.textContent = label.length > LETTERS ? `${label.slice(0, LETTERS - 1)}…` : label;
    });
  }

  function line(xs, ys, attributes, curve, parent = ink) {
    let d = "";
    let pen = false;
    xs.forEach((x, i) => {
      const y = clamp(ys[i]);
      if (Number.isNaN(y) || (view.xLog && x <= 0)) { pen = false; return; }
      d += `${pen ? "L" : "M"}${round(px(x))},${y}`;
      pen = true;
    });
    svg("path", { d, fill: "none", stroke: curve.style[view.theme], "stroke-dasharray": curve.style.dash.join(" "), ...attributes }, parent);
  }

  // About seven marks a curve, evenly spread over the width, each on a recorded point.
  function marks(curve, parent) {
    let next = box.left + 18 + (curve.method % 7) * 9;
    curve.x.forEach((x, i) => {
      if (px(x) < next) return;
      const y = clamp(curve.mid[i]);
      if (Number.isNaN(y)) return;
      svg("path", { d: MARKER[curve.style.marker], transform: `translate(${round(px(x))} ${y})`, fill: curve.style[view.theme], class: "mark" }, parent);
      next = px(x) + (width - box.left) / 7;
    });
  }
  return { px, py, box, shown };
}
