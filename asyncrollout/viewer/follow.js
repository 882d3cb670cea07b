// Follows a live run: its current figures, and the whole page again when there is new data.

const EVERY = 2000, LEAST = 3000;
const known = data("served"), KEPT = `following ${known.run}`;
const live = el("span", { "aria-live": "off" }), follows = el("input", { type: "checkbox", name: "follow", checked: true });
const came = Date.now();

/** Milliseconds that this page took to load: a slow report is reloaded less often, since the run needs the machine. */
const loading = () => performance.getEntriesByType("navigation")[0].duration;

/** The state of the page, for the one that replaces it. */
function keep() {
  const place = { theme: document.documentElement.dataset.theme, chosen, opened: [...opened], first, follow: follows.checked };
  sessionStorage.setItem(KEPT, JSON.stringify({ ...place, top: scrollY }));
}

function takeUp() {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  sessionStorage.removeItem(KEPT);
  if (kept === null) return;
  setTheme(kept.theme);
  follows.checked = kept.follow;
  for (const [name, value] of Object.entries(kept.chosen)) {
    chosen[name] = value;
    const field = document.querySelector(`form [name="${name}"]`);
    if (field) field.value = value;
  }
  for (const group of kept.opened) opened.add(group);
  if (groups.length) applyFilter();
  if (kept.first < found.length) first = kept.first;
  if (groups.length) drawRows();
  scrollTo(0, kept.top);
}

const isReading = () => dialog.open || ["SELECT", "INPUT"].includes(document.activeElement?.tagName)
  && document.activeElement !== follows;

function report({ state, figures }) {
  const wanted = figures.wanted_batches === undefined ? "" : ` of ${figures.wanted_batches}`;
  const evaluates = !figures.groups && figures.evaluated_rollouts > 0;
  const done = evaluates ? `${figures.evaluated_rollouts} rollouts evaluated` : `${figures.batches ?? 0}${wanted} batches`;
  const parts = [state, done];
  if (figures.reward_recent !== undefined) parts.push(`recent reward ${shown(figures.reward_recent, "number")}`);
  if (state === "playing") parts.push(`${shown(Math.round(figures.turns_per_second ?? 0), "count")} turns/s`);
  live.textContent = `Now: ${parts.join(" · ")}`;
}

async function look() {
  try {
    const now = await (await fetch("state.json")).json();
    report(now);
    const isDue = now.version !== known.version && Date.now() - came > Math.max(LEAST, 10 * loading());
    if (isDue && follows.checked && !isReading()) {
      keep();
      location.reload();
      return;
    }
  } catch {
    live.textContent = "The viewer is not responding. Was it stopped?";
  }
  setTimeout(look, EVERY);
}

document.getElementById("state").after(el("p", { id: "live" }, live, el("label", {}, follows, "auto-refresh")));
document.querySelector(".brand").replaceChildren(el("a", { href: "../../" }, "asyncrollout · all runs"));
takeUp();
look();
