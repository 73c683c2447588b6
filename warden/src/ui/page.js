// The warden's dashboard (spec 4.3): machines, running images, and every event of the fleet, live.

// A token in the address would end up in bookmarks and screenshots. It is no longer needed, since the cookie is set.
{
  const address = new URL(location.href);
  if (address.searchParams.has("token")) {
    address.searchParams.delete("token");
    history.replaceState(null, "", address.pathname + address.search + address.hash);
  }
}

const KEPT_EVENTS = 500;
// The same once the user has loaded older entries.
const KEPT_HISTORY = 5000;
const HISTORY_PAGE = 100;
// How many services of one agent are listed according to its entries, which may name any.
const KEPT_SERVICES = 200;
const POLL_MS = 10000;
const FIELDS = ["machine", "service", "image", "kind", "level", "since", "until", "text"];
// The kinds of this version; the history may contain others that are not loaded.
const KINDS = [
  "started", "shutdown", "manual_trigger", "checked", "trigger_failed", "error", "not_delivered", "recovered", "not_found",
  "approved", "updated", "pulled", "rolled_back", "rollback_failed", "update_available", "way_back", "compose_drift",
  "force_redeploy", "force_redeploy_failed", "unblocked", "unhealthy", "restarting", "restart_failed", "restarted",
  "exhausted", "healthy", "died", "resource_alert", "resumed", "config_reloaded", "config_rejected", "daemon_down",
  "daemon_up", "agent_online", "agent_offline", "frozen", "thawed", "fleet_away",
];
const form = byId("filters");

let machines = null; // the last answer of /machines; null before the first
let events = []; // by the warden's ids, newest first
const fleet = new Map(); // agent and service → state according to the entries
const crowded = new Set(); // agents with more services than are listed

setText(byId("where"), here);

// --- machines ----------------------------------------------------------------------------------------------------

function machineCard(machine) {
  const name = h("strong", { class: "untrusted" });
  const word = badge();
  const since = timeNode("since");
  const sinceWord = h("span");
  const sinceLine = h("span", { class: "small soft" });
  const last = h("div", { class: "small" });
  const levels = h("div", { class: "levels" });
  const missing = h("p", { class: "missing" });
  const reason = h("p", { class: "untrusted clamp small reason" });
  const pick = h("button", { type: "button", class: "button quiet pick", onclick: () => choose("machine", machine.id) },
    "Show events", h("span", { class: "sr" }, ` of ${legible(machine.id)}`));
  const lastTime = timeNode("ago");
  const lastText = h("span", { class: "untrusted clamp" });
  last.append("Last entry ", lastTime, lastText);
  const node = h("li", { class: "panel card" }, h("div", { class: "head" }, name, word.node), sinceLine, reason, last, levels, missing, pick);
  return {
    node,
    update(m) {
      setText(name, m.id);
      const known = typeof m.online === "boolean";
      const state = !known ? "unknown" : m.online ? "online" : "offline";
      setAttribute(node, "class", `panel card ${state}`);
      word.set({ online: "is-ok", offline: "is-bad", unknown: "" }[state], { online: "✓", offline: "✕", unknown: "·" }[state], state);
      setVisible(sinceLine, Boolean(m.since));
      if (m.since) {
        if (!since.parentNode) sinceLine.append(sinceWord, " ", since);
        setText(sinceWord, state);
        setTime(since, m.since);
      }
      setVisible(reason, state === "offline" && Boolean(m.reason));
      setText(reason, m.reason ?? "");
      const newest = events.find((e) => agentOf(e) === m.id);
      const at = newest?.timestamp ?? m.last_entry;
      setVisible(last, Boolean(at));
      if (at) setTime(lastTime, at);
      setText(lastText, newest ? newest.message : "");
      const counts = Object.entries(m.counts_by_level ?? {}).filter(([, n]) => n > 0);
      setVisible(levels, counts.length > 0);
      reconcile(levels, counts, ([level]) => level, levelCount);
      setVisible(missing, m.missing > 0);
      setText(missing, m.missing > 0 ? `▲ ${count(m.missing, "entry", "entries")} missing: sent by the agent, not received here` : "");
    },
  };
}

function levelCount() {
  const made = badge();
  return {
    node: made.node,
    update([level, n]) {
      const [look, glyph] = LEVELS[level] ?? ["", "·"];
      made.set(look, glyph, `${n} ${level}`);
    },
  };
}

async function readMachines() {
  try {
    machines = await ask("GET", "/machines");
  } catch (fault) {
    // The session is no longer valid (another token, another warden): back to the login form.
    if (fault.status === 401) location.reload();
    throw fault;
  }
  document.body.dataset.ready = "1";
  // A successful answer means that there is a session to end.
  setVisible(byId("logout"), true);
  showMachines();
}

byId("logout").addEventListener("click", async () => {
  try {
    await ask("POST", "/logout");
    // The back button must not lead to a logged-out page.
    location.replace(`${base}/`);
  } catch (fault) {
    toast("You are still logged in.", fault.message, "failed");
  }
});

function showMachines() {
  if (machines === null) return;
  const off = machines.filter((m) => m.online === false).length;
  const on = machines.filter((m) => m.online === true).length;
  const unknown = machines.length - on - off;
  const parts = [`${count(on, "machine")} online`];
  if (off) parts.push(`${off} offline`);
  if (unknown) parts.push(`${unknown} unknown`);
  setText(byId("summary"), machines.length ? parts.join(" · ") : "No machines");
  const heading = `${off ? `(${off}) ` : ""}Evenkeel warden · ${here}`;
  if (document.title !== heading) document.title = heading;
  setText(byId("machines-count"), machines.length || "");
  reconcile(byId("machines"), machines, (m) => m.id, machineCard);
  setVisible(byId("no-machines"), machines.length === 0);
  setText(byId("no-machines-title"), "No machines are configured");
  setText(byId("no-machines-text"), "Add each agent under \"agents\" in the warden's configuration file, or run warden-config, then reload the warden (SIGHUP).");
  offer("machine", [...machines.map((m) => m.id), ...events.map(machineOf)]);
}

// --- fleet -------------------------------------------------------------------------------------------------------

const machineOf = (entry) => entry.machine || entry.agent || "";
// A card represents an agent; its entries may use another machine name. The warden's own entries have no agent, and are about
// a machine by its id.
const agentOf = (entry) => entry.agent || machineOf(entry);
const isOf = (entry, machine) => entry.agent === machine || machineOf(entry) === machine;
// Anyone may claim a name, so it is shown with the agent that uses it.
const nameOf = (entry) => agentOf(entry) === machineOf(entry) ? machineOf(entry) : `${machineOf(entry)} (${entry.agent})`;
const PROGRAMS = new Set(["evenkeel", "warden", "dockward", ""]);

function learn(entry) {
  if (PROGRAMS.has(entry.service)) return;
  const agent = agentOf(entry);
  const key = `${agent}\u0000${entry.service}`;
  const known = fleet.get(key) ?? { key, service: entry.service, agent };
  // After an update the new image runs, after a rollback the old one.
  const digest = { updated: entry.new_digest, rolled_back: entry.old_digest }[entry.event];
  // In the order of arrival, whatever the clocks say: an agent sends in order, and an entry dated in the future must not hide
  // all that follow.
  if (!(known.id > entry.id)) Object.assign(known, { id: entry.id, machine: machineOf(entry), heard: entry.timestamp, event: entry.event, level: entry.level });
  if (digest && !(known.runsId > entry.id)) Object.assign(known, { runs: digest, runsId: entry.id });
  const isNew = !fleet.has(key);
  fleet.set(key, known);
  if (isNew) limitServices(agent);
}

// Removes the service that an agent has not mentioned for longest, if it has mentioned too many.
function limitServices(agent) {
  const own = [...fleet.values()].filter((s) => s.agent === agent);
  if (own.length <= KEPT_SERVICES) return;
  crowded.add(agent);
  fleet.delete(own.reduce((a, b) => (b.id < a.id ? b : a)).key);
}

function fleetRow() {
  const service = h("td", { role: "cell", class: "untrusted" });
  const machine = h("td", { role: "cell", class: "untrusted soft" });
  const word = badge();
  const runs = h("td", { role: "cell" });
  const digest = digestNode("digest", "");
  const unknown = h("span", { class: "soft" }, "no deployment seen");
  runs.append(digest.node, unknown);
  const heard = timeNode("ago");
  const node = h("tr", { role: "row" }, service, machine, h("td", { role: "cell" }, word.node), runs,
    h("td", { role: "cell", class: "soft" }, heard));
  return {
    node,
    update(s) {
      setText(service, s.service);
      setText(machine, nameOf(s));
      const [look, glyph] = LEVELS[s.level] ?? ["", "·"];
      word.set(look, glyph, kindWords(s.event));
      setVisible(digest.node, Boolean(s.runs));
      setVisible(unknown, !s.runs);
      if (s.runs) digest.set(s.runs, s.runs.slice(0, 19));
      setTime(heard, s.heard);
    },
  };
}

// --- feed --------------------------------------------------------------------------------------------------------

function feedRow(e) {
  const td = (name, node) => h("td", { role: "cell", class: name }, node);
  return {
    node: h("tr", { role: "row", class: e.live ? "fresh" : "" },
      td("soft", timeNode("ago", e.timestamp)),
      td("untrusted", legible(nameOf(e))),
      td("untrusted", legible(e.service)),
      td("untrusted", kindWords(e.event)),
      td("right", levelBadge(e.level)),
      td("wide", messageNode(e))),
    update(e) { setVisible(this.node, matches(e)); },
  };
}

const seen = new Set();
let lastId = 0;
// Adds an entry from the stream or the history. Returns whether it is new.
function keep(entry, id, live) {
  // The replay after a reconnect may repeat entries. Their content does not change.
  const { agent, seq, timestamp, service, event, message } = entry;
  const key = [timestamp, agent, seq, machineOf(entry), service, event, message].join("\u0000");
  if (seen.has(key)) return false;
  seen.add(key);
  const made = { ...entry, key, id, live };
  const place = events.findIndex((e) => e.id < id);
  events.splice(place === -1 ? events.length : place, 0, made);
  learn(made);
  return true;
}

function takeEvent(entry, frame) {
  // In the order of the ids, which is the warden's order.
  const id = Number(frame) || lastId + 1;
  lastId = Math.max(lastId, id);
  if (!keep(entry, id, Date.now() - began > 3000)) return;
  // Older entries can be loaded once the first live entry is known.
  if (older.floor === undefined) startView();
  older.floor = Math.min(older.floor ?? id, id);
  const most = older.used ? KEPT_HISTORY : KEPT_EVENTS;
  if (events.length > most) {
    // Dropped entries can be loaded again.
    for (const gone of events.splice(most)) seen.delete(gone.key);
    Object.assign(older, { floor: Math.max(older.floor, events.at(-1).id), next: undefined, done: false });
  }
  if (entry.event === "agent_online" || entry.event === "agent_offline") readMachinesSoon();
  if (map && CHANGES_MAP.has(entry.event)) readMapSoon();
  showEventsSoon();
}
const CHANGES_MAP = new Set(["updated", "rolled_back", "rollback_failed", "unblocked", "frozen", "thawed", "update_available", "approved"]);
const began = Date.now();

const showEventsSoon = paced(250, showEvents);
function showEvents() {
  limitHighlights(events);
  reconcile(byId("events"), events, (e) => e.key, feedRow);
  const visible = events.filter(matches).length;
  setText(byId("feed-count"), !events.length ? "" : visible === events.length ? `last ${events.length}` : `${visible} of ${events.length} loaded`);
  showOlder();
  setVisible(byId("no-events"), visible === 0);
  if (!visible) {
    setText(byId("no-events-title"), events.length ? "No event matches" : "No entries yet");
    setText(byId("no-events-text"), events.length ? "No entry matches all of these filters."
      : "Set push.warden_url and push.token in an agent's configuration to this warden, and its entries appear here.");
  }
  // The map is more accurate than the entries, so its machines are not listed here.
  const mapped = new Set(map?.images.flatMap((image) => image.cells.map((cell) => cell.machine)));
  const inOrder = [...fleet.values()].filter((s) => !mapped.has(s.agent)).sort((a, b) => a.service.localeCompare(b.service) || a.machine.localeCompare(b.machine));
  reconcile(byId("fleet"), inOrder, (s) => s.key, fleetRow);
  const cut = [...crowded].filter((agent) => !mapped.has(agent)).sort();
  setVisible(byId("fleet-note"), cut.length > 0);
  setText(byId("fleet-note"), `The list is cut: of ${cut.slice(0, 8).map(legible).join(", ")}${cut.length > 8 ? ` and ${cut.length - 8} more` : ""}, only the ${KEPT_SERVICES} services with the latest entries are shown.`);
  setVisible(byId("no-fleet"), fleet.size === 0);
  setVisible(byId("fleet-section"), inOrder.length > 0 || mapped.size === 0);
  const cells = map?.images.flatMap((image) => image.cells) ?? [];
  offer("service", [...events.map((e) => e.service), ...cells.map((cell) => cell.service)]);
  offer("image", [...events.map((e) => e.image), ...cells.map((cell) => cell.image)]);
  offer("kind", [...events.map((e) => e.event), ...KINDS]);
  offer("machine", [...(machines ?? []).map((m) => m.id), ...events.map(machineOf)]);
  showMachines();
}

// --- history -----------------------------------------------------------------------------------------------------

// How far back the feed goes. `floor`: the oldest id from which all entries are loaded; `next`: where the next page of this
// view starts; `used`: whether the user has loaded older entries.
const older = { floor: undefined, next: undefined, done: false, busy: false, used: false, view: 0, fault: "", found: true };

function showOlder() {
  setVisible(byId("older"), older.floor !== undefined);
  setVisible(byId("load-older"), !older.done);
  setText(byId("older-text"), older.fault || (older.done ? "There are no older entries."
    : older.busy ? "Loading…" : older.found ? "" : "No match so far; there are older entries."));
}

function startView() {
  Object.assign(older, { next: undefined, done: false, fault: "", found: true, view: older.view + 1 });
  clearTimeout(startView.timer);
  if (FIELDS.some((name) => chosen[name])) startView.timer = setTimeout(() => loadOlder(), 400);
}

// The warden ends a page after some time, even if it has found nothing. Up to this many further pages are then requested.
const MORE_PAGES = 20;

async function loadOlder(left = MORE_PAGES) {
  if (older.busy || older.done || older.floor === undefined) return;
  const view = older.view;
  const query = new URLSearchParams({ limit: HISTORY_PAGE, before: older.next ?? older.floor });
  const name = { kind: "event", text: "q" };
  for (const field of FIELDS) if (chosen[field]) query.set(name[field] ?? field, chosen[field]);
  Object.assign(older, { busy: true, fault: "" });
  showOlder();
  try {
    const page = await ask("GET", `/history?${query}`);
    let found = 0;
    for (const { id, ...entry } of page.entries) if (keep(entry, id, false)) found += 1;
    older.used = true;
    if (view === older.view) {
      if (!FIELDS.some((field) => chosen[field])) older.floor = Math.min(older.floor, page.next ?? 0);
      Object.assign(older, { next: page.next, done: page.next === undefined, found: found > 0 });
    }
  } catch (fault) {
    if (fault.status === 401) location.reload();
    older.fault = view === older.view ? `Older entries can't be loaded: ${fault.message}` : "";
  } finally {
    older.busy = false;
  }
  if (view !== older.view) return loadOlder();
  if (left > 0 && !older.found && !older.done && !older.fault) return loadOlder(left - 1);
  showEvents();
  watchOlder();
}

// Continues as long as the end of the list is visible and entries are found.
const watcher = new IntersectionObserver((changes) => {
  if (changes.some((change) => change.isIntersecting) && older.found && !older.fault && window.scrollY > 0) loadOlder();
}, { rootMargin: "200px" });
function watchOlder() {
  watcher.disconnect();
  watcher.observe(byId("older"));
}
watchOlder();
byId("load-older").addEventListener("click", () => loadOlder());

// --- filters, kept in the address --------------------------------------------------------------------------------

const chosen = Object.fromEntries(FIELDS.map((name) => [name, new URLSearchParams(location.search).get(name) ?? ""]));

function matches(e) {
  // Older entries may have been loaded by another view; shown with gaps, they would be misleading.
  if (!older.done && e.id < (older.next ?? older.floor)) return false;
  if (chosen.machine && !isOf(e, chosen.machine)) return false;
  if (chosen.service && e.service !== chosen.service) return false;
  if (chosen.image && e.image !== chosen.image) return false;
  if (chosen.since && !(Date.parse(e.timestamp) >= Date.parse(chosen.since))) return false;
  if (chosen.until && !(Date.parse(e.timestamp) < Date.parse(chosen.until))) return false;
  if (chosen.kind && e.event !== chosen.kind) return false;
  if (chosen.level && e.level !== chosen.level) return false;
  if (!chosen.text) return true;
  const wanted = chosen.text.toLowerCase();
  return [nameOf(e), e.service, e.event, e.message, e.reason, e.container, e.old_digest, e.new_digest, e.output]
    .some((text) => text && text.toLowerCase().includes(wanted));
}

function optionItem([value]) {
  return { node: h("option", { value }, legible(value)) };
}

// Offers these values in a filter; the chosen one stays even if no entry has it any more.
function offer(name, values) {
  const list = form.elements[name];
  const all = list.options[0];
  const known = new Set(values.filter(Boolean));
  if (chosen[name]) known.add(chosen[name]);
  const sorted = [...known].sort((a, b) => a.localeCompare(b));
  const now = [...list.options].slice(1).map((o) => o.value);
  if (sorted.length === now.length && sorted.every((v, i) => v === now[i])) return;
  list.replaceChildren(all, ...sorted.map((value) => optionItem([value]).node));
  list.value = chosen[name];
}

// Time fields use the user's local time; the address and the warden get UTC.
const isTime = (name) => name === "since" || name === "until";
function valueOf(name) {
  const { value } = form.elements[name];
  if (!isTime(name)) return value.trim();
  const at = Date.parse(value);
  return Number.isNaN(at) ? "" : new Date(at).toISOString();
}
function fillField(name) {
  const at = new Date(Date.parse(chosen[name]));
  form.elements[name].value = !isTime(name) || Number.isNaN(at.getTime()) ? chosen[name]
    : new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

function choose(name, value) {
  chosen[name] = value;
  const field = form.elements[name];
  // Keep a trailing space, which may precede the next word.
  if (valueOf(name) !== value) {
    if (name === "machine") offer(name, [...field.options].map((o) => o.value));
    fillField(name);
  }
  const query = new URLSearchParams(FIELDS.filter((field) => chosen[field]).map((field) => [field, chosen[field]]));
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  setVisible(byId("clear"), query.size > 0);
  startView();
  showEvents();
}

for (const name of FIELDS) {
  const field = form.elements[name];
  if (isTime(name) && Number.isNaN(Date.parse(chosen[name]))) chosen[name] = "";
  if (field.options && name !== "level") offer(name, []);
  fillField(name);
  field.addEventListener("input", () => choose(name, valueOf(name)));
}
setVisible(byId("clear"), FIELDS.some((name) => chosen[name]));
startView();
form.addEventListener("submit", (event) => event.preventDefault());
byId("clear").addEventListener("click", () => {
  for (const name of FIELDS) choose(name, "");
  search.focus();
});
byId("share").addEventListener("click", async () => {
  try {
    await copyText(location.href);
    toast("Copied.", "The link opens this view for everyone who can log in.");
  } catch (fault) {
    toast("Not copied.", `${fault.message}; the link is also in the address bar.`, "failed");
  }
});

// --- connection --------------------------------------------------------------------------------------------------

const connection = new Connection({
  url: "/events",
  events: { message: takeEvent },
  poll: readMachines,
  badge: byId("link"),
  quiet: 3.5 * POLL_MS,
});
connection.onstate = (state) => {
  if (machines !== null) return;
  const failed = state === "stale" || (state === "reconnecting" && Date.now() - began > 3000);
  setText(byId("no-machines-title"), failed ? "The warden does not answer" : "Waiting for the warden…");
  setText(byId("no-machines-text"), failed ? "Is it running? This page keeps trying." : "");
};

let mapRead = 0;
let soon = null;
function readMachinesSoon() {
  soon ??= setTimeout(() => { soon = null; poll(); }, 300);
}

// Entries arrive only when something happens, and a page cannot see the stream's heartbeats, which are comments. These
// responses show that the warden is running, and whether the stream should have delivered something.
async function poll() {
  if (document.hidden) return;
  try {
    await readMachines();
    connection.expect(Math.max(0, ...machines.map((m) => Date.parse(m.last_entry) || 0)));
    if (Date.now() - mapRead > MAP_MS) {
      mapRead = Date.now();
      readMap().then(showEvents, () => { /* retried soon */ });
    }
    const health = await (await fetch(`${base}/health`)).json();
    setVisible(byId("store-away"), health.store === "away");
    setText(byId("store-why"), health.error || "See the warden's log for the reason.");
    connection.hear();
  } catch { /* shown by the connection's state */ }
}
document.addEventListener("visibilitychange", poll);
setInterval(poll, POLL_MS);
poll();
