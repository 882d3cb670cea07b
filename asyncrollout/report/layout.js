// What every page has: its data, tables and sections, the summary at the top, light and dark themes.

const data = (name) => JSON.parse(document.getElementById(name).textContent);
const main = document.getElementById("main");
const side = (kind) => (kind === "text" || kind === "bar" ? null : "n");

function cell(value, { kind }) {
  if (kind === "bar") {
    const drawn = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "f0", width: 100 * value, height: 10 }));
    return el("td", { class: "bar" }, el("div", {}, shown(value, kind), drawn));
  }
  if (Array.isArray(value)) { // a mean, and its interval
    const [mean, between] = estimated(value, kind);
    return el("td", { class: "n" }, mean, between ? el("span", { class: "half" }, ` ${between}`) : null);
  }
  return el("td", { class: side(kind) }, value instanceof Node ? value : shown(value, kind));
}

const head = (columns) => el("thead", {}, el("tr", {},
  columns.map(({ label, kind }) => el("th", { scope: "col", class: side(kind) }, label))));
const row = (values, columns) => el("tr", {}, values.map((value, place) => cell(value, columns[place])));
const table = (spec) => el("div", { class: "card wide" }, caption(spec), el("div", { class: "scroll" },
  el("table", {}, head(spec.columns), el("tbody", {}, spec.rows.map((values) => row(values, spec.columns))))));

function section(id, title, lead, ...parts) {
  document.getElementById("sections").append(el("a", { href: `#${id}` }, title));
  main.append(el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title),
    lead ? el("p", { class: "lead" }, lead) : null, el("div", { class: "parts" }, parts)));
}

const pairs = (entries) => el("dl", { class: "facts" }, entries.filter(([, value]) => value !== "")
  .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

const theme = document.getElementById("theme");
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "◐ Light" : "◐ Dark";
}
theme.addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

const tile = ({ label, value, kind, note, interval }) => el("div", { class: "card" },
  el("div", { class: "label" }, label),
  el("div", { class: "value" }, interval ? estimated([value, ...interval], kind)[0] : shown(value, kind)),
  el("div", { class: "note" }, note));

/** Name and state, the headline figures, and all computed sections. */
function showSummary({ name, what, state, tiles, note, sections }) {
  for (const [id, text] of Object.entries({ name, what, state })) document.getElementById(id).textContent = visible(text);
  if (tiles.length) main.append(el("div", { class: "tiles" }, tiles.map(tile)));
  if (note) main.append(el("p", { class: "lead" }, note));
  for (const { id, title, text: lead, parts } of sections) {
    section(id, title, lead, parts.map((part) => (part.type === "table" ? table(part) : figure(part))));
  }
}
