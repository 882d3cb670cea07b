// The report of a run: the computed figures, the table of groups, and one trajectory at a time.

const summary = data("summary"), groups = data("groups"), videos = data("videos");
const dialog = el("dialog", { id: "trajectory", "aria-labelledby": "trajectory-name" });
const ROWS = 50, LONG = 1500, LONG_LINES = 24, PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,/;

// The table: groups that match the filter, a page at a time, and the members of open ones.

const columns = [
  ["group", "text"], ["env", "text"], ["status", "text"], ["batch", "count"], ["passed", "text"],
  ["reward", "number"], ["turns", "count"], ["tokens", "count"], ["seconds", "number"],
].map(([label, kind]) => ({ label, kind }));
const chosen = { env: "", fate: "", result: "", error: "", from: "", to: "", uid: "" };
const opened = new Set();
const body = el("tbody"), count = el("output", { "aria-live": "polite" });
let found = [], first = 0;

const ended = (member) => `ended: ${member.stop}`;
const fate = (group) => (group.reason ? `${group.fate}: ${group.reason}` : group.fate);
const total = (values) => values.reduce((sum, value) => sum + value, 0);
const mean = (values) => (values.length ? total(values) / values.length : null);

const FITS = {
  result: (member, value) => value === (member.passed ? "passed" : "not passed") || value === ended(member),
  error: (member, value) => value === (member.error ? "any" : "none") || value === member.error,
  from: (member, value) => member.reward !== null && member.reward >= Number(value),
  to: (member, value) => member.reward !== null && member.reward <= Number(value),
  uid: (member, value) => member.uid.includes(value),
};

function applyFilter() {
  const wanted = Object.keys(FITS).filter((name) => chosen[name] !== "");
  const fits = (member) => wanted.every((name) => FITS[name](member, chosen[name]));
  found = groups
    .filter((group) => (!chosen.env || group.env === chosen.env) && (!chosen.fate || fate(group) === chosen.fate))
    .map((group) => ({ group, members: group.members.filter(fits) }))
    .filter(({ members }) => !wanted.length || members.length);
  first = 0;
  drawRows();
}

function outcome(member) {
  if (member.error) return el("span", { class: "bad" }, `✕ ${member.error}`);
  const passed = member.passed ? "✓ passed" : "○ not passed";
  return el("span", { class: member.passed ? "good" : null }, `${passed}, ${member.stop}`);
}

function groupRow({ group, members }) {
  const isOpen = opened.has(group.id);
  const name = el("span", {}, el("span", { class: "mark", "aria-hidden": "true" }, isOpen ? "▾" : "▸"), group.id);
  const rewards = members.map((one) => one.reward).filter((reward) => reward !== null);
  const values = [
    name, group.env, fate(group), group.batch, `${members.filter((one) => one.passed).length} of ${members.length}`,
    mean(rewards), total(members.map((one) => one.turns)), total(members.map((one) => one.tokens)),
    mean(members.map((one) => one.seconds)),
  ];
  return fill(row(values, columns),
    { tabindex: -1, "aria-expanded": String(isOpen), "aria-level": 1, "data-group": group.id }, []);
}

function memberRow(member) {
  const values = [member.reward, member.turns, member.tokens, member.seconds];
  return el("tr", { class: "member", tabindex: -1, "aria-level": 2, "data-uid": member.uid },
    el("td", {}, member.uid), el("td", { colspan: 4 }, outcome(member)),
    values.map((value, place) => cell(value, columns[place + 5])));
}

function drawRows(focused) {
  const rows = found.slice(first, first + ROWS);
  body.replaceChildren(...rows.flatMap((one) =>
    [groupRow(one), ...(opened.has(one.group.id) ? one.members.map(memberRow) : [])]));
  const rollouts = shown(total(found.map((one) => one.members.length)), "count");
  count.value = found.length
    ? `Groups ${first + 1}–${first + rows.length} of ${shown(found.length, "count")}, with ${rollouts} rollouts`
    : "No groups match the filter.";
  document.getElementById("previous").disabled = first === 0;
  document.getElementById("next").disabled = first + ROWS >= found.length;
  const current = [...body.rows].find((one) => focused !== undefined && one.dataset.group === focused) ?? body.rows[0];
  if (current) current.tabIndex = 0;
  if (current && focused !== undefined) current.focus();
}

function toggle(id, open = !opened.has(id)) {
  opened[open ? "add" : "delete"](id);
  drawRows(id);
}

const activate = ({ dataset }) => (dataset.uid === undefined ? toggle(dataset.group) : openTrajectory(dataset.uid));

function onKey(event) {
  const one = event.target.closest("tr"), rows = [...body.rows], place = rows.indexOf(one);
  const goal = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (goal !== undefined && rows[goal]) {
    one.tabIndex = -1;
    rows[goal].tabIndex = 0;
    rows[goal].focus();
  } else if (event.key === "Enter" || event.key === " ") activate(one);
  else if (event.key === "ArrowRight" && one.dataset.group !== undefined) toggle(one.dataset.group, true);
  else if (event.key === "ArrowLeft") toggle(one.dataset.group ?? homes.get(one.dataset.uid).id, false);
  else return;
  event.preventDefault();
}

const choose = (name) => (event) => { chosen[name] = event.target.value; applyFilter(); };
const entry = (name, label, type) =>
  el("label", {}, label, el("input", { name, type, step: "any", input: choose(name) }));
const choice = (name, label, options) => el("label", {}, label, el("select", { name, input: choose(name) },
  el("option", { value: "" }, "all"), options.map((value) => el("option", { value }, value))));
const different = (values) => [...new Set(values)].filter((value) => value !== "").toSorted();

function trajectories() {
  const members = groups.flatMap((group) => group.members);
  const clear = () => { for (const name of Object.keys(chosen)) chosen[name] = ""; applyFilter(); };
  const filter = el("form", { "aria-label": "Filter", submit: (event) => event.preventDefault(), reset: clear },
    choice("env", "env", different(groups.map((group) => group.env))),
    choice("fate", "status", different(groups.map(fate))),
    choice("result", "outcome", ["passed", "not passed", ...different(members.map(ended))]),
    choice("error", "error", ["none", "any", ...different(members.map((one) => one.error))]),
    entry("from", "reward from", "number"), entry("to", "to", "number"), entry("uid", "uid contains", "search"),
    el("button", { type: "reset" }, "Clear"));
  const pages = [["previous", "Previous", -ROWS], ["next", "Next", ROWS]].map(([id, label, by]) =>
    el("button", { id, type: "button", click: () => { first += by; drawRows(); } }, label));
  const rows = el("table", { class: "rows", role: "treegrid", "aria-label": "Groups" }, head(columns), body);
  section("trajectories", "Groups and trajectories",
    "Open a group to see its rollouts, and a rollout to see its turns. Keyboard: arrow keys, Enter, Escape.",
    el("div", { class: "card wide" }, filter, el("div", { class: "scroll" }, rows),
      el("div", { class: "pager" }, count, pages)));
  body.addEventListener("click", (event) => { const one = event.target.closest("tr"); if (one) activate(one); });
  body.addEventListener("keydown", onKey);
  applyFilter();
}

// One trajectory. Its block is unpacked when it is opened; the last block stays unpacked.

const homes = new Map(groups.flatMap((group) => group.members.map((member) => [member.uid, group])));
let unpacked = { number: -1, content: null };

async function block(number) {
  if (unpacked.number !== number) {
    const packed = atob(document.getElementById(`block-${number}`).textContent);
    const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked = { number, content: await new Response(stream).json() };
  }
  return unpacked.content;
}

/** A short text in full; the beginning of a long one, with a button. */
function text(content) {
  const lines = content.split("\n", LONG_LINES + 1);
  const short = (lines.length > LONG_LINES ? lines.slice(0, LONG_LINES).join("\n") : content).slice(0, LONG);
  if (short.length === content.length) return el("pre", { dir: "auto" }, content);
  const pre = el("pre", { dir: "auto" }, `${short} …`), all = `Show all ${shown(content.length, "count")} characters`;
  const flip = ({ target }) => {
    const isOpen = target.getAttribute("aria-expanded") === "false";
    target.setAttribute("aria-expanded", String(isOpen));
    target.textContent = isOpen ? "Show less" : all;
    pre.textContent = visible(isOpen ? content : `${short} …`);
  };
  return [pre, el("button", { type: "button", class: "fold", "aria-expanded": "false", click: flip }, all)];
}

const picture = (url) => (url !== null && PICTURE.test(url)
  ? el("img", { src: url, alt: "image from the env" }) : el("p", { class: "note" }, "[image not shown]"));
const folded = (label, content) => (content
  ? el("details", {}, el("summary", { class: "role" }, label), text(content)) : null);

function said(role, content, kind = role, pictures = []) {
  if (!content && !pictures.length) return null;
  return el("div", { class: `said ${/^\w+$/.test(kind) ? kind : ""}` }, el("div", { class: "role" }, role),
    content ? text(content) : null, pictures.map(picture));
}

const prompt = (part) => (part.role === "system" && !part.pictures.length
  ? folded("system prompt", part.text) : said(part.role, part.text, part.role, part.pictures));

const videoBox = el("div", { class: "video" });

/** The recorded video; in runs that record none, the files named after the rollout. */
function videosOf(uid, { video }) {
  if (video) return videos.filter((name) => name === video.file);
  return videos.filter((name) => name.startsWith(uid) && /^[._-]/.test(name.slice(uid.length)));
}

/** From the first frame to the last one, and no further. */
function playFrames([from, to], fps) {
  const player = videoBox.querySelector("video"), end = (to + 0.5) / fps;
  const look = () => {
    if (player.currentTime >= end) player.pause();
    if (!player.paused) requestAnimationFrame(look);
  };
  player.pause();
  player.currentTime = (from + 0.5) / fps;
  player.play().then(look, () => {}); // a browser that cannot play it shows that in its place
}

function videoButton(turn, video) {
  const frames = video?.turns[turn];
  if (!frames || !videoBox.children.length) return null;
  const label = frames[0] === frames[1] ? `▶ frame ${frames[0]}` : `▶ frames ${frames[0]} to ${frames[1]}`;
  return el("button", { type: "button", class: "fold", "data-frames": turn, click: () => playFrames(frames, video.fps) },
    label);
}

function turnCard(turn, video) {
  const figures = [
    turn.tokens ? `${shown(turn.tokens, "count")} tokens` : "",
    `LLM ${turn.replayed && !turn.policy_seconds ? "" : seconds(turn.policy_seconds)}${turn.replayed ? " from the record" : ""}`,
    `env ${seconds(turn.env_seconds)} (working ${seconds(turn.env_work_seconds)})`, turn.version ? `weights ${turn.version}` : "",
    turn.finish === "stop" ? "" : `finish: ${turn.finish}`,
  ].filter((part) => part);
  const worth = turn.reward > 0 ? "good" : turn.reward < 0 ? "bad" : null;
  return el("section", { class: "card turn" },
    el("h3", {}, `Turn ${turn.turn}`, el("span", { class: worth }, `reward ${shown(turn.reward, "number")}`),
      figures.map((part) => el("span", {}, part)), videoButton(turn.turn, video)),
    turn.hidden ? el("p", { class: "note" }, `The model saw only messages ${turn.hidden} and later.`) : null,
    turn.prompt.map(prompt), said("reasoning", turn.reasoning), said("reply", turn.reply),
    said("tool calls", turn.calls, "reply"), said("action", turn.action, "reply"),
    turn.valid ? said("parsed as", turn.parsed, "parse") : said("invalid", turn.parsed || "no reason given", "error"),
    folded("info", turn.info));
}

function overview(group, member, content) {
  const error = content.error;
  const length = `${member.turns} turns, ${shown(member.tokens, "count")} tokens, ${seconds(member.seconds)}`;
  return el("div", { class: "card" },
    pairs([["env", group.env], ["seed", content.seed], ["outcome", outcome(member)],
      ["reward", shown(member.reward, "number")], ["group", `${group.id}, ${fate(group)}`], ["length", length],
      ["metrics", content.metrics], ["video", content.video?.partial ? "incomplete" : ""]]),
    error ? [said(error.name, error.message || "no message", "error"), folded("where", error.where),
      folded("traceback", error.notes)] : null,
    said("task", content.task));
}

async function openTrajectory(uid) {
  const group = homes.get(uid);
  if (!group) return;
  const content = (await block(group.block))[uid];
  const order = found.flatMap((one) => one.members), place = order.findIndex((one) => one.uid === uid);
  const step = (label, by) => {
    const goal = place < 0 ? undefined : order[place + by];
    const go = () => openTrajectory(goal.uid);
    return el("button", { type: "button", "data-step": by, disabled: !goal, click: go }, label);
  };
  const last = said("env", content.final, "env", content.pictures);
  videoBox.replaceChildren(...videosOf(uid, content).map((name) =>
    el("video", { src: `videos/${encodeURIComponent(name)}`, controls: true, muted: true })));
  dialog.replaceChildren(
    el("div", { class: "top" }, el("h2", { id: "trajectory-name" }, uid), step("← Previous", -1), step("Next →", 1),
      el("button", { type: "button", autofocus: true, click: () => dialog.close() }, "Close"), videoBox),
    el("div", { class: "in" }, overview(group, group.members.find((one) => one.uid === uid), content),
      content.turns.map((turn) => turnCard(turn, content.video)),
      last ? el("section", { class: "card" }, el("h3", {}, "Final observation"), last) : null));
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("[autofocus]").focus();
  dialog.scrollTop = 0;
  history.replaceState(null, "", `#${encodeURIComponent(uid)}`);
}

dialog.addEventListener("close", () => {
  videoBox.replaceChildren();
  history.replaceState(null, "", "#trajectories");
});
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by) dialog.querySelector(`[data-step="${by}"]`).click();
});
main.addEventListener("click", ({ target }) => openTrajectory(target.closest(".pick")?.dataset.uid));

document.body.append(dialog);
showSummary(summary);
if (groups.length) trajectories();
section("run", "Run details", "", el("div", { class: "card wide" }, pairs(summary.facts),
  folded("resolved configuration", summary.config)));
const linked = [...homes.keys()].find((uid) => location.hash === `#${encodeURIComponent(uid)}`);
if (linked !== undefined) openTrajectory(linked);
