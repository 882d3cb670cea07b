"use strict";
// Elements, numbers and plots. What a model or an env wrote reaches the page as text only, through `el` or `svg`.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** The text with its control codes made visible: none of them may turn the direction of what stands beside it. */
function visible(text) {
  return text.replace(HIDDEN, (char) => {
    const code = char.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** Attributes that are functions listen to the event of that name; children that are not nodes become text. */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === "") continue;
    node.append(child instanceof Node ? child : visible(String(child)));
  }
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const UNITS = [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

function seconds(value) {
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 300) return `${(value / 60).toFixed(1)} min`;
  if (value >= 1) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return `${(value * 1e6).toFixed(0)} µs`;
}

const fixed = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

const LARGE = [[1e12, "T"], [1e9, "G"], [1e6, "M"]];
const magnitude = (value) => Math.floor(Math.log10(value));
const decimalsFor = (value, digits) => (value > 0 ? Math.max(0, digits - 1 - magnitude(value)) : 0);

/** Numbers or shares with the same unit and decimals, so that two digits of what they differ by are shown. As
 * `precision.py` does. */
function together(values, kind) {
  const scale = kind === "share" ? 100 : 1;
  const known = values.filter((value) => (value ?? null) !== null).map((value) => value * scale);
  const size = known.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const width = known.length ? Math.max(...known) - Math.min(...known) : 0;
  let [factor, unit] = [1, ""], decimals = 1;
  if (kind === "share") {
    decimals = Math.max(1, decimalsFor(width, 2), size < 1 ? decimalsFor(size, 2) : 0);
    unit = "%";
  } else {
    if (size > 0 && (size < 1e-3 || size >= 1e15)) [factor, unit] = [10 ** magnitude(size), `e${magnitude(size)}`];
    else if (size >= 1e6) [factor, unit] = LARGE.find(([least]) => size >= least);
    const usual = size ? Math.max(0, 3 - Math.max(0, magnitude(size / factor) - 1)) : 3;
    const small = size / factor < 0.1 ? decimalsFor(size / factor, 3) : 0;
    decimals = Math.min(Math.max(usual, small, decimalsFor(width / factor, 2)), 12);
  }
  const text = (value) => fixed((value * scale) / factor, decimals).replace(/^-([0.,]+)$/, "$1"); // no -0
  return values.map((value) => ((value ?? null) === null ? "–" : text(value) + unit));
}

/** A mean with its interval, if it has one. */
function estimated([mean, low, high], kind) {
  const [middle, from, to] = together([mean, low, high], kind);
  return (low ?? null) === null ? [middle, ""] : [middle, `[${from}, ${to}]`];
}

/** A value as its kind is written; "–" for what is not known. */
function shown(value, kind) {
  if (value === null || value === undefined) return "–";
  if (kind === "text") return value;
  if (kind === "count") return value.toLocaleString("en");
  if (kind === "share" || kind === "bar") return `${(value * 100).toFixed(1)}%`;
  if (kind === "seconds") return seconds(value);
  return together([value], kind)[0];
}

/** The same of any kind, as one text. */
const worded = (found, kind) =>
  (kind === "number" || kind === "share" ? estimated(found, kind).join(" ").trimEnd() : shown(found[0], kind));

/** Round numbers from low to high, about `count` of them. */
function ticks(low, high, count, whole) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const nice = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const step = whole ? Math.max(Math.round(nice), 1) : nice;
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) {
    found.push(place * step + 0); // no -0
  }
  return found;
}

/** A logarithmic scale: where a value is, and the powers of ten. */
function logarithmic(axis, low, high, from, to, room) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high) + 1e-9)];
  const at = (value) => from + ((Math.log10(value) - first) / (last - first)) * (to - from);
  const every = Math.ceil((last - first + 1) / Math.max(room, 2));
  const marks = [];
  for (let power = first; power <= last; power += every) marks.push([10 ** power, seconds(10 ** power)]);
  return { at, label: axis.label, ticks: marks.map(([value, text]) => [value, text.replace(/\.0+(?= )/, "")]) };
}

/** A scale for an axis: where a value is, and its ticks with their texts, about as many as there is room for. */
function scaled(axis, values, from, to, room) {
  let low = axis.low ?? values.reduce((least, value) => Math.min(least, value), Infinity);
  let high = axis.high ?? values.reduce((most, value) => Math.max(most, value), -Infinity);
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [axis.log ? 0.1 : 0, 1];
  if (axis.log) return logarithmic(axis, low, high, from, to, room);
  if (high - low < 1e-9 * Math.max(Math.abs(low), 1)) {
    const more = Math.max(1, 1e-6 * Math.abs(low)); // enough to distinguish it from a large number
    [low, high] = axis.low === undefined ? [low - more / 2, high + more / 2] : [low, low + more];
  } else if (axis.high === undefined && !axis.tight) high += (high - low) * 0.05;
  const at = (value) => from + ((Math.min(Math.max(value, low), high) - low) / (high - low)) * (to - from);
  const [size, unit] = axis.kind === "seconds" ? UNITS.find(([limit]) => high >= 2 * limit) ?? UNITS[4] : [1, ""];
  const factor = axis.kind === "share" ? 100 : 1 / size;
  const marks = ticks(low * factor, high * factor, room, axis.kind === "count");
  const decimals = marks.length > 1 ? Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0]) + 1e-9)) : 0;
  const text = (mark) => fixed(mark, decimals) + (axis.kind === "share" ? "%" : "");
  return {
    at,
    label: unit ? `${axis.label} (${unit})` : axis.label,
    ticks: marks.map((mark) => [mark / factor, text(mark)]),
  };
}

const path = (points) =>
  points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** How each kind of series is drawn. Points: [x, y, low, high], [left, right, y], [x, low, high]. */
const DRAWN = {
  line({ points, colour, name }, x, y, spec) {
    const placed = points.map(([at, value]) => [x.at(at), y.at(value)]);
    const sure = points.filter((point) => (point[2] ?? null) !== null);
    const upper = sure.map(([at, , , high]) => [x.at(at), y.at(high)]);
    const lower = sure.map(([at, , low]) => [x.at(at), y.at(low)]).toReversed();
    const label = ([at, ...found]) => `${name}: ${worded(found, spec.y.kind)} (${spec.x.label} ${shown(at, spec.x.kind)})`;
    const dots = points.length > 60 ? [] : points.map((point, place) => svg("circle",
      { class: `f${colour}`, cx: placed[place][0], cy: placed[place][1], r: 3 }, svg("title", {}, label(point))));
    return [
      sure.length ? svg("path", { class: `band f${colour}`, d: `${path([...upper, ...lower])}Z` }) : null,
      svg("path", { class: `line s${colour}`, d: path(placed) }),
      dots,
    ];
  },
  steps({ points, colour }, x, y) {
    const tops = points.flatMap(([left, right, value]) => [[x.at(left), y.at(value)], [x.at(right), y.at(value)]]);
    const ends = [[x.at(points[0][0]), y.at(0)], [x.at(points[points.length - 1][1]), y.at(0)]];
    return svg("path", { class: `steps f${colour} s${colour}`, d: path([ends[0], ...tops, ends[1]]) });
  },
  area({ points, colour }, x, y) {
    const upper = points.map(([at, , high]) => [x.at(at), y.at(high)]);
    const lower = points.map(([at, low]) => [x.at(at), y.at(low)]).toReversed();
    return svg("path", { class: `area f${colour}`, d: `${path([...upper, ...lower])}Z` });
  },
};

/** What a point of each kind of series reaches to: along the axis, and up and down. */
const REACH = {
  line: ([x, y, low, high]) => [[x], [low ?? y, high ?? y]],
  steps: ([left, right, y]) => [[left, right], [y]],
  area: ([x, low, high]) => [[x], [low, high]],
};

const RIGHT = 10, BOTTOM = 38, TOP = 10;

function axes(x, y, width, height, left) {
  const bottom = height - BOTTOM, middle = (bottom + TOP) / 2;
  const inside = (at, text) => Math.min(at, width - 3.2 * text.length);
  return [
    y.ticks.map(([value, text]) => [
      svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: y.at(value), y2: y.at(value) }),
      svg("text", { x: left - 7, y: y.at(value) + 4, "text-anchor": "end" }, text),
    ]),
    x.ticks.map(([value, text]) => [
      svg("line", { class: "grid", x1: x.at(value), x2: x.at(value), y1: bottom, y2: bottom + 4 }),
      svg("text", { x: inside(x.at(value), text), y: bottom + 17, "text-anchor": "middle" }, text),
    ]),
    svg("text", { x: (left + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, x.label),
    svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, y.label),
  ];
}

function drawPlot(spec, width) {
  const height = spec.small ? 190 : 240, left = spec.small ? 54 : 62;
  const series = spec.series.filter(({ points }) => points.length);
  const reached = series.flatMap(({ kind, points }) => points.map(REACH[kind]));
  const [xs, ys] = [0, 1].map((which) => reached.flatMap((point) => point[which]));
  const x = scaled({ ...spec.x, tight: true }, xs, left, width - RIGHT, width / 90);
  const y = scaled(spec.y, ys, height - BOTTOM, TOP, 5);
  return svg("svg", { class: "plot", width, height, role: "img", "aria-label": spec.title },
    axes(x, y, width, height, left), series.map((one) => DRAWN[one.kind](one, x, y, spec)));
}

/** Bars are [uid, lane, start, [[kind, seconds], ...]]; one path has all stretches of a kind, so that many are fast. */
function drawTimeline(spec, width) {
  const left = 14, lanes = 1 + spec.bars.reduce((most, bar) => Math.max(most, bar[1]), 0);
  const lane = Math.max(3, Math.min(14, 460 / lanes)), height = lanes * lane + TOP + BOTTOM + 4, thick = lane * 0.8;
  const x = scaled({ label: "time", kind: "seconds", low: 0, high: spec.end }, [], left, width - RIGHT, width / 90);
  const paths = spec.legend.map(() => []);
  const picks = spec.bars.map(([uid, row, start, parts]) => {
    const top = TOP + row * lane;
    let now = start;
    for (const [kind, taken] of parts) {
      const from = x.at(now), to = x.at((now += taken));
      paths[kind].push(`M${from.toFixed(2)} ${top.toFixed(1)}H${to.toFixed(2)}v${thick}H${from.toFixed(2)}z`);
    }
    const long = Math.max(x.at(now) - x.at(start), 1);
    return svg("rect", { class: "pick", "data-uid": uid, x: x.at(start), y: top, width: long, height: thick },
      svg("title", {}, `${uid}: ${seconds(now - start)}`));
  });
  return svg("svg", { class: "plot", width, height, role: "img", "aria-label": "Timeline of rollouts" },
    axes(x, { ticks: [], label: "" }, width, height, left),
    paths.map((parts, kind) => svg("path", { class: `f${spec.legend[kind].colour}`, d: parts.join("") })), picks);
}

/** Rows are [name, colour, mean, low, high]; a dot for the mean, and a line from low to high. */
function drawIntervals({ title, x: { label, kind }, rows }, width) {
  const row = 24, left = Math.min(width * 0.4, 220), right = 64, height = rows.length * row + TOP + BOTTOM;
  const values = rows.flatMap(([, , ...found]) => found.filter((value) => value !== null));
  const [low, high] = kind === "share" ? [0, 1] : margins(values);
  const x = scaled({ label, kind, low, high }, values, left, width - right, (width - left) / 90);
  const lines = rows.map(([name, colour, mean, from, to], place) => {
    const y = TOP + (place + 0.5) * row;
    return svg("g", {}, svg("title", {}, `${name}: ${worded([mean, from, to], kind)}`),
      svg("text", { class: "name", x: left - 12, y: y + 4, "text-anchor": "end" }, short(name, left / 7.5)),
      from === null ? null : svg("line", { class: `whisker s${colour}`, x1: x.at(from), x2: x.at(to), y1: y, y2: y }),
      mean === null ? null : svg("circle", { class: `f${colour}`, cx: x.at(mean), cy: y, r: 5 }),
      svg("text", { class: "name", x: width, y: y + 4, "text-anchor": "end" }, estimated([mean, from, to], kind)[0]));
  });
  return svg("svg", { class: "plot", width, height, role: "img", "aria-label": title },
    axes(x, { ticks: [], label: "" }, width - right + RIGHT, height, left), lines);
}

/** From a little below the least value to a little above the largest. */
function margins(values) {
  const low = Math.min(...values), high = Math.max(...values), more = (high - low) * 0.1 || 0.5;
  return Number.isFinite(low) ? [low - more, high + more] : [0, 1];
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const swatch = (colour) => svg("svg", { viewBox: "0 0 14 10", "aria-hidden": "true" },
  svg("rect", { class: `f${colour}`, width: 14, height: 10, rx: 2 }));
const caption = ({ title, note }) => [el("h3", {}, title), note ? el("p", { class: "note" }, note) : null];

/** A figure that is drawn as wide as there is room, and again when that changes. */
function figure(spec) {
  const draw = { timeline: drawTimeline, intervals: drawIntervals, plot: drawPlot }[spec.type], series = spec.series ?? [];
  const isWide = spec.type === "timeline" || series.some(({ kind }) => kind === "area");
  const named = spec.legend ?? (series.length > 1 ? series : []);
  const place = el("div");
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(place.clientWidth);
    if (width > 0 && width !== last) place.replaceChildren(draw(spec, (last = width)));
  }).observe(place);
  return el("figure", { class: isWide ? "wide" : spec.small ? "small" : null },
    el("figcaption", {}, caption(spec)), place,
    el("ul", { class: "legend" }, named.map(({ name, colour }) => el("li", {}, swatch(colour), name))));
}
