// The list of runs, refreshed every few seconds; selected runs can be compared.

const EVERY = 2000, MOST = data("most");
const COLUMNS = [
  ["", "text"], ["run", "text"], ["state", "text"], ["envs", "text"], ["began", "text"], ["batches", "text"],
  ["reward", "number"], ["success", "share"], ["rollouts", "count"], ["errors", "count"], ["turns/s", "number"],
].map(([label, kind]) => ({ label, kind }));
const picked = new Set();
const list = el("tbody"), compare = el("button", { type: "button", disabled: true, click: openComparison }, "Compare");

function openComparison() {
  location.href = `compare?${new URLSearchParams([...picked].map((name) => ["run", name]))}`;
}

function pick(name, isPicked) {
  picked[isPicked ? "add" : "delete"](name);
  compare.disabled = picked.size < 2 || picked.size > MOST;
  compare.textContent = picked.size > MOST ? `Compare: at most ${MOST} runs`
    : picked.size > 1 ? `Compare ${picked.size} runs` : "Compare";
}

function runRow({ name, state, envs, began, figures }) {
  const choose = ({ target }) => pick(name, target.checked);
  const box = el("input", { type: "checkbox", "aria-label": `choose ${name}`, checked: picked.has(name), change: choose });
  const link = el("a", { href: `runs/${encodeURIComponent(name)}/` }, name);
  const errors = Object.entries(figures).filter(([figure]) => figure.startsWith("errors/"));
  const wanted = figures.wanted_batches === undefined ? "" : ` of ${figures.wanted_batches}`;
  const evaluates = !figures.groups && figures.evaluated_rollouts > 0;
  return row([
    box, link, el("span", { class: `state ${state}` }, state), envs.join(", "),
    began === null ? "–" : new Date(began * 1000).toLocaleString(), evaluates ? "evaluation" : `${figures.batches ?? 0}${wanted}`,
    figures.reward_mean, figures.success_rate, evaluates ? figures.evaluated_rollouts : figures.rollouts, errors.reduce((sum, [, count]) => sum + count, 0),
    state === "playing" ? figures.turns_per_second : null,
  ], COLUMNS);
}

function showRuns(runs) {
  const playing = runs.filter(({ state }) => state === "playing").length;
  document.getElementById("state").textContent = runs.length
    ? `${runs.length} runs, ${playing} playing.` : "No runs yet. New runs appear here as they start.";
  const focused = document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent;
  list.replaceChildren(...runs.map(runRow));
  const same = (one) => (one.getAttribute("aria-label") ?? one.textContent) === focused;
  [...list.querySelectorAll("a, input")].find(same)?.focus();
}

let last = "";

/** A slow list is refreshed less often; an unchanged one is left as it is. */
async function refresh() {
  const began = performance.now();
  try {
    const content = await (await fetch("runs.json")).text();
    if (content !== last) showRuns(JSON.parse(content));
    last = content;
  } catch {
    document.getElementById("state").textContent = "The viewer is not responding. Was it stopped?";
    last = "";
  }
  setTimeout(refresh, Math.max(EVERY, 10 * (performance.now() - began)));
}

document.getElementById("name").textContent = "Runs";
main.append(el("div", { class: "card wide" }, el("div", { class: "scroll" },
  el("table", { class: "runs" }, head(COLUMNS), list)), el("div", { class: "pager" }, compare)));
showRuns(data("runs"));
setTimeout(refresh, EVERY);
