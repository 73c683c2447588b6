// The agent's dashboard (spec 4.2): services from the status stream, the last 50 events, and actions.

// Glyph, style and meaning of each status (spec 3.1). `needs`: an operator should look; `works`: the agent is working on it.
const STATUSES = {
  ok: { glyph: "✓", look: "is-ok", hint: "Running and healthy" },
  deploying: { glyph: "↻", look: "is-busy", works: true, hint: "An image update is in progress" },
  degraded: { glyph: "↻", look: "is-warn", works: true, hint: "The healer is attempting recovery" },
  unhealthy: { glyph: "▲", look: "is-warn", needs: true, hint: "Unhealthy, and no recovery is in progress" },
  not_found: { glyph: "?", look: "is-warn", needs: true, hint: "The local image was not found; nothing is deployed until a new one is pushed" },
  blocked: { glyph: "⊘", look: "is-bad", needs: true, hint: "An image is blocked; updated when another one is pushed" },
  errored: { glyph: "✕", look: "is-bad", needs: true, hint: "The last check failed; the next check retries" },
  exhausted: { glyph: "‼", look: "is-worst", needs: true, hint: "Restarts did not help, and the healer has given up; fix the cause, then unblock" },
  not_watched: { glyph: "✕", look: "is-bad", needs: true, hint: "Its configuration has an error; correct the file and reload it" },
  unknown: { glyph: "·", look: "", hint: "No health data yet" },
};
const GONE = { glyph: "▲", look: "is-warn", needs: true, hint: "Its container does not exist" };
// A container that is watched by its name, and does not exist.
const isGone = (s) => s.status === "unknown" && Boolean(s.unhealthy_reason);
const statusOf = (s) => (isGone(s) ? GONE : STATUSES[s.status] ?? STATUSES.unknown);
const PHASES = { pulling: "Pulling", starting: "Starting", probation: "On probation", rolling_back: "Rolling back", spreading: "Starting beside the old containers", draining: "Draining the old containers", retiring: "Stopping the old containers", soaking: "Serving alone, on probation", settling: "Removing the old containers", quiescing: "Stopping what writes to the data", copying: "Copying the data", restoring: "Putting the data back" };
const STOPPED = "stopped by hand";
const KEPT_EVENTS = 50;
const FRAME_MS = 8;
const SAMPLE_MS = 5000;

const rows = new Map(); // name → row
let services = null; // the last status, in the configuration's order; null before the first
let events = []; // newest first
const filter = { status: "all", text: "" };

setText(byId("where"), here);

// --- one row -----------------------------------------------------------------------------------------------------

function cell(name, ...children) {
  return h("td", { class: name, role: "cell" }, ...children);
}

function gauge(name) {
  const fill = h("i");
  const bar = h("div", { class: "bar", "aria-hidden": "true" }, fill);
  const value = h("span", { class: "value" }, "no data yet");
  const line = curve(`${name}, recent values`);
  const node = h("div", { class: "gauge" }, h("span", { class: "what" }, name), value, bar, line.node);
  return {
    node,
    sample: line.add,
    set(percent, text, title) {
      setText(value, text);
      setAttribute(value, "title", title);
      const width = `${Math.min(100, Math.max(0, percent)).toFixed(1)}%`;
      if (fill.style.width !== width) fill.style.width = width;
      setAttribute(bar, "class", percent >= 95 ? "bar full" : percent >= 80 ? "bar high" : "bar");
    },
  };
}

function flag(letter, name) {
  const said = h("span", { class: "sr" });
  const node = h("span", { class: "flag" }, h("span", { "aria-hidden": "true" }, letter), said);
  return {
    node,
    set(on) {
      setAttribute(node, "class", on ? "flag" : "flag off");
      setAttribute(node, "title", `${name}: ${on ? "on" : "off"}`);
      setText(said, `${name} ${on ? "on" : "off"}.`);
    },
  };
}

function tallyItem(list, letter, name) {
  const value = h("dd", { class: "" });
  list.append(h("dt", { title: name }, h("span", { "aria-hidden": "true" }, letter), h("span", { class: "sr" }, name)), value);
  return (n, isBad) => {
    setText(value, n);
    setAttribute(value, "class", n ? (isBad ? "some bad" : "some") : "");
  };
}

// A collapsible part of the name cell: its button, its panel, and the function that fills the panel while it is open.
function fold(id, name, fill) {
  const panel = h("div", { class: "fold-panel", id, role: "group", "aria-label": name, hidden: true });
  const button = h("button", { type: "button", class: "fold", "aria-expanded": "false", "aria-controls": id }, name);
  const part = {
    button,
    panel,
    open: false,
    label: (n) => setText(button, n === undefined ? name : `${name} ${n}`),
    refresh: (value) => { if (part.open) fill(panel, value); },
  };
  button.addEventListener("click", () => {
    part.open = !part.open;
    setAttribute(button, "aria-expanded", String(part.open));
    setVisible(panel, part.open);
    part.refresh(part.latest());
  });
  return part;
}

// Fills a panel with a list, or with a text if the list is empty.
function fillList(panel, kind, items, keyOf, make, emptyText) {
  if (!panel.firstChild) {
    panel.append(h("ul", { class: `things ${kind}` }), h("p", { class: "empty soft" }, emptyText));
  }
  const [list, empty] = panel.children;
  setVisible(list, items.length > 0);
  setVisible(empty, items.length === 0);
  reconcile(list, items, keyOf, make);
}

function containerItem() {
  const name = h("strong", { class: "untrusted" });
  const image = h("div", { class: "untrusted small soft" });
  const state = h("span", { class: "untrusted" });
  const detail = h("div", { class: "untrusted small soft" });
  const cpu = h("span");
  const memory = h("span");
  const mounts = h("ul", { class: "mounts", "aria-label": "Mounts" });
  const node = h("li", null, h("div", null, name, image), h("div", null, state, detail), cpu, memory, mounts);
  return {
    node,
    update(c) {
      setText(name, c.name);
      setText(image, c.image);
      setText(state, c.state);
      setText(detail, lasting(c.status));
      setAttribute(state, "title", legible(c.status));
      setText(cpu, c.cpu_percent === undefined ? "CPU –" : `CPU ${c.cpu_percent.toFixed(1)} %`);
      setText(memory, c.memory_usage_mb === undefined ? "Memory –"
        : `Memory ${mebibytes(c.memory_usage_mb)}${c.memory_limit_mb ? ` of ${mebibytes(c.memory_limit_mb)}` : ""}`);
      setVisible(mounts, Boolean(c.mounts?.length));
      reconcile(mounts, c.mounts ?? [], (m) => `${m.type} ${m.destination}`, mountItem);
    },
  };
}

// The part of the engine's status text that does not age: "Up 2 hours (healthy)" → healthy, "Exited (1) 3 hours ago" → code 1.
function lasting(status) {
  const word = /\(([^)]*)\)/.exec(status)?.[1] ?? "";
  return /^\d+$/.test(word) ? `code ${word}` : word;
}

function mountItem() {
  const kind = h("span", { class: "kind" });
  const way = h("code", { class: "untrusted" });
  const access = h("span");
  return {
    node: h("li", null, kind, way, access),
    update(m) {
      setText(kind, m.type);
      const from = m.name || m.source;
      setText(way, from ? `${from} → ${m.destination}` : m.destination);
      setText(access, m.read_only ? "read-only" : "read-write");
    },
  };
}

function imageItem(image) {
  const name = h("code", { class: "untrusted" });
  const size = h("span");
  const digest = digestNode("digest", image.digest, image.short);
  const newer = h("span", { class: "newer small untrusted", hidden: true });
  return {
    node: h("li", null, name, size, digest.node, newer),
    update(i) {
      setText(name, i.image);
      setText(size, i.size_mb ? mebibytes(i.size_mb) : "size unknown");
      digest.set(i.digest, i.short);
      setVisible(newer, Boolean(i.newer));
      setText(newer, `There is a newer tag: ${i.newer}`);
    },
  };
}

// What the probe of an image on probation has shown so far.
function probeText({ probe, passed, answer }) {
  const state = passed ? "succeeded" : "has not succeeded yet";
  return `Probe ${probe} ${state}${answer ? `: ${answer}` : ""}`;
}

// One side of a handover.
function sideText(title, containers) {
  const one = ({ name, state, health }) => `${name} (${health ?? state})`;
  return `${title}: ${containers.length ? containers.map(one).join(", ") : "none"}`;
}

function deployStrip() {
  const phase = h("span");
  const amount = h("span");
  const left = timeNode("left");
  const since = timeNode("since");
  const fill = h("i");
  const bar = h("div", { class: "bar busy", role: "progressbar", "aria-label": "Progress of the deployment", "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  const probe = h("div", { class: "probe untrusted", hidden: true });
  const [old, fresh] = [h("span", { class: "untrusted" }), h("span", { class: "untrusted" })];
  const sides = h("div", { class: "sides", hidden: true }, old, fresh);
  const node = h("div", { class: "deploy", hidden: true }, h("div", { class: "line" }, phase, h("span", null, amount, left, since)), bar, probe, sides);
  return {
    node,
    set(deploy) {
      setVisible(node, Boolean(deploy));
      if (!deploy) return;
      setVisible(sides, Boolean(deploy.handover));
      if (deploy.handover) {
        setText(old, sideText("Old", deploy.handover.old));
        setText(fresh, sideText("New", deploy.handover.new));
      }
      setText(phase, deploy.hook === "before" ? "Running the hook before" : PHASES[deploy.phase] ?? deploy.phase);
      setAttribute(node, "title", legible(deploy.image));
      setVisible(probe, Boolean(deploy.probe));
      if (deploy.probe) setText(probe, probeText(deploy.probe));
      const pulls = !deploy.hook && (deploy.phase === "pulling" || deploy.phase === "copying");
      const begun = Date.parse(deploy.since);
      const end = Date.parse(deploy.deadline ?? "");
      let part = null;
      if (pulls && deploy.total_bytes) part = deploy.pulled_bytes / deploy.total_bytes;
      else if (!pulls && end > begun) part = (clockNow() - begun) / (end - begun);
      setText(amount, !pulls ? "" : deploy.total_bytes ? `${bytes(deploy.pulled_bytes)} of ${bytes(deploy.total_bytes)} ` : `${bytes(deploy.pulled_bytes)} `);
      setVisible(left, Boolean(deploy.deadline) && !pulls);
      setVisible(since, !deploy.deadline && !pulls);
      if (deploy.deadline) setTime(left, deploy.deadline);
      setTime(since, deploy.since);
      setVisible(bar, part !== null);
      if (part === null) return;
      const percent = Math.round(Math.min(1, Math.max(0, part)) * 100);
      fill.style.width = `${percent}%`;
      setAttribute(bar, "aria-valuenow", String(percent));
    },
  };
}

// An update that is held by a gate: its image, the reason, and the remaining time.
function waitingStrip() {
  const image = h("strong", { class: "untrusted" });
  const why = h("span", { class: "untrusted" });
  const left = timeNode("until");
  const lifts = h("span", { class: "lifts" }, "lifts ", left);
  const digest = digestNode("waiting digest", "");
  const differs = h("ul", { class: "differences", hidden: true });
  const elsewhere = h("div", { class: "untrusted", hidden: true });
  const output = h("pre", { class: "output", tabindex: "0", role: "region", "aria-label": "Output of the failed container" });
  const box = h("details", { class: "more", hidden: true }, h("summary", null, "Last lines of its output"), output);
  const node = h("div", { class: "note is-waiting", hidden: true },
    h("div", null, h("span", null, "An update is waiting: "), image), h("div", null, why, " ", lifts), differs, elsewhere, box, digest.node);
  return {
    node,
    set(waiting, blockedBy) {
      setVisible(node, Boolean(waiting));
      if (!waiting) return;
      setText(image, waiting.image);
      setText(why, `${waiting.why}${waiting.lifts_at ? ";" : "."}`);
      setVisible(lifts, Boolean(waiting.lifts_at));
      if (waiting.lifts_at) setTime(left, waiting.lifts_at);
      digest.set(waiting.digest);
      // The gate that asks about a difference names it already.
      const others = (waiting.differences ?? []).filter((text) => !waiting.why.includes(text));
      setVisible(differs, others.length > 0);
      differs.replaceChildren(...others.map((text) => h("li", { class: "untrusted" }, `The new image ${legible(text)}.`)));
      setVisible(elsewhere, Boolean(blockedBy));
      setText(elsewhere, waiting.gate === "immunity" ? `It failed on ${blockedBy}.` : `It must be proven on ${blockedBy} first.`);
      setVisible(box, Boolean(waiting.output));
      setText(output, waiting.output ?? "");
    },
  };
}

// Fills an open panel with what the agent answers: a text above, a list of this class below. `show(answer, list)` returns the
// text; an empty one is hidden.
async function showAnswer(panel, path, kind, show) {
  if (!panel.firstChild) panel.append(h("p", { class: "empty soft untrusted" }, "Loading…"), h("ul", { class: `things ${kind}`, hidden: true }));
  const [text, list] = panel.children;
  // The answer is shown with what the record says by then.
  panel.show = show;
  // One request at a time, at most one per second: while an image is pulled, a record changes several times per second.
  if (panel.isAsking) { panel.isAskedAgain = true; return; }
  panel.isAsking = true;
  panel.isAskedAgain = false;
  let shown;
  try {
    const answer = await ask("GET", path);
    shown = panel.show(answer, list);
    setVisible(list, list.children.length > 0);
  } catch (fault) {
    shown = fault.message;
  }
  setVisible(text, Boolean(shown));
  setText(text, shown);
  setTimeout(() => {
    panel.isAsking = false;
    if (panel.isAskedAgain) showAnswer(panel, path, kind, panel.show);
  }, 1000);
}

// Every gate of a service.
function showWhy(panel, name) {
  showAnswer(panel, `/why/${encodeURIComponent(name)}`, "gates", (report, list) => {
    reconcile(list, report.gates, (gate) => gate.gate, gateItem);
    return report.answer;
  });
}

function gateItem() {
  const word = h("strong", { class: "untrusted" });
  const state = h("span");
  const why = h("span", { class: "untrusted" });
  const left = timeNode("until");
  const lifts = h("span", { class: "small soft" }, "lifts ", left);
  const clear = h("code", { class: "untrusted small" });
  return {
    node: h("li", null, word, state, h("div", null, why, " ", lifts, " ", clear)),
    update(gate) {
      setText(word, gate.gate.replaceAll("_", " "));
      setText(state, gate.holds ? "holds" : "open");
      setText(why, gate.why);
      setVisible(lifts, gate.holds && Boolean(gate.lifts_at));
      if (gate.lifts_at) setTime(left, gate.lifts_at);
      setVisible(clear, gate.holds && Boolean(gate.clear));
      setText(clear, gate.clear ?? "");
    },
  };
}

// The images that were proven here, and the data that is kept.
function showHistory(panel, name, record) {
  const kept = record.snapshots ?? [];
  showAnswer(panel, `/history/${encodeURIComponent(name)}`, "history", (records, list) => {
    const of = (one) => ({ ...one, data: kept.find((snapshot) => snapshot.id === one.snapshot) });
    reconcile(list, records.map(of), (one) => `${one.image} ${one.digest}`, () => provenItem(name));
    return records.length > 0 ? "" : "No image was proven here yet.";
  });
  if (!panel.children[2]) panel.append(h("ul", { class: "things snapshots" }));
  const list = panel.children[2];
  setVisible(list, kept.length > 0);
  reconcile(list, kept, (one) => `${one.id} ${one.kind}`, snapshotItem);
}

function snapshotItem() {
  const of = h("strong", { class: "untrusted" });
  const at = timeNode("ago");
  const size = h("span", { class: "small soft" });
  const why = h("span", { class: "untrusted small soft" });
  const places = h("code", { class: "untrusted small" });
  return {
    node: h("li", null, of, size, h("span", { class: "small soft" }, "of ", at), why, places),
    update(one) {
      setText(of, one.of.length > 0 ? one.of.join(", ") : "dump");
      setTime(at, one.at);
      setText(size, `${one.mib} MiB`);
      setText(why, one.kind === "copy" ? `copied before the update to ${one.image}` : `set aside, as left by ${one.image}`);
      setText(places, [...one.places.map((place) => place.volume ?? place.path), one.dump].filter(Boolean).join(", "));
    },
  };
}

function provenItem(name) {
  const image = h("strong", { class: "untrusted" });
  const version = h("span", { class: "untrusted small soft" });
  const digest = digestNode("proven digest", "");
  const proven = timeNode("ago");
  const left = timeNode("ago");
  const runs = h("span", { class: "small soft" }, "proven ", proven);
  const gone = h("span", { class: "small soft" }, ", left ", left);
  const disk = h("span", { class: "small soft" });
  let shown = null;
  const goBack = (label, data) => {
    const button = h("button", { type: "button", class: "button" }, label);
    onPress(button, async (node) => {
      const what = `${legible(shown.image)} is deployed with ${legible(shown.digest)}, and what runs now is blocked. The service is briefly unavailable.`;
      const sure = await confirmDialog(`Roll ${legible(name)} back${data ? " with its data" : ""}?`, `${what} ${ofData(shown.data, data)}`, label);
      if (sure) act(node, `/rollback/${encodeURIComponent(name)}`, name, data ? { to: shown.digest, data } : { to: shown.digest });
    });
    return button;
  };
  const back = goBack("Roll back", false);
  const withData = goBack("Roll back with data", true);
  return {
    node: h("li", null, image, version, digest.node, h("span", null, runs, gone, disk), h("div", { class: "deeds" }, back, withData)),
    update(one) {
      shown = one;
      setText(image, one.image);
      setText(version, one.version ?? "");
      digest.set(one.digest, one.digest.slice(0, 19));
      setTime(proven, one.proven_at);
      setVisible(gone, Boolean(one.left_at));
      if (one.left_at) setTime(left, one.left_at);
      setText(disk, one.on_disk ? "" : ", not on this machine's disk");
      setVisible(back, !one.runs);
      setVisible(withData, Boolean(!one.runs && one.data));
    },
  };
}

// What a rollback does to the data.
function ofData(data, puts) {
  if (!data) return "The data stays as it is.";
  const kept = `the data of ${exactForm.format(Date.parse(data.at))} (${data.mib} MiB: ${legible(data.of.join(", "))})`;
  return puts
    ? `It gets ${kept} again. The data of now is set aside and kept; what was written since is in there and nowhere else.`
    : `The data stays as it is; there is a snapshot of ${kept}.`;
}

let made = 0;
function makeRow(name) {
  let record = null;
  let sampled = 0;
  const id = `s${(made += 1)}`;
  const title = h("strong", { class: "untrusted", id }, legible(name));
  const containers = fold(`${id}c`, "Containers", (panel, s) =>
    fillList(panel, "containers", s.containers ?? [], (c) => c.id, containerItem,
      s.containers ? "This service has no containers." : "Containers are not watched for this service."));
  const images = fold(`${id}i`, "Images", (panel, s) =>
    fillList(panel, "images", s.images ?? [], (i) => i.image, imageItem,
      s.images ? "No images are configured." : "Available after the first check."));
  const recent = fold(`${id}e`, "Events", (panel) => {
    if (!panel.firstChild) {
      panel.append(
        h("table", { class: "events", role: "table", "aria-label": `Events of ${legible(name)}` }, h("tbody", { role: "rowgroup" })),
        h("p", { class: "empty soft" }, "None among the last 50 events."));
    }
    const own = events.filter((e) => e.service === name);
    setVisible(panel.firstChild, own.length > 0);
    setVisible(panel.lastChild, own.length === 0);
    reconcile(panel.firstChild.firstChild, own, (e) => e.key, (e) => eventRow(e, false));
  });
  const why = fold(`${id}w`, "Why", (panel) => showWhy(panel, name));
  const history = fold(`${id}h`, "History", (panel, s) => showHistory(panel, name, s));
  const folds = [containers, images, recent, why, history];
  const below = h("div", { class: "below", hidden: true }, ...folds.map((part) => part.panel));
  for (const part of folds) {
    part.latest = () => record;
    part.button.addEventListener("click", () => setVisible(below, folds.some((one) => one.open)));
  }

  const word = badge();
  const deploy = deployStrip();
  const said = h("span", { class: "untrusted" });
  const blockedDigest = digestNode("blocked digest", "");
  const notFoundDigest = digestNode("missing digest", "");
  const note = h("div", { class: "note", hidden: true }, said, blockedDigest.node, notFoundDigest.node);
  const held = waitingStrip();

  const flags = [flag("U", "Auto update"), flag("H", "Auto heal"), flag("S", "Auto start")];
  const due = timeNode("until");
  const dueWord = h("span");
  const last = timeNode("ago");
  const lastLine = h("div", { class: "small soft" }, "last ", last);
  const cpu = gauge("CPU");
  const memory = gauge("Mem");
  const noStats = h("span", { class: "small soft" }, "no data yet");
  const list = h("dl", { class: "tally" });
  const tally = [
    tallyItem(list, "U", "Updates"), tallyItem(list, "R", "Rollbacks"),
    tallyItem(list, "H", "Heals"), tallyItem(list, "F", "Failures"),
  ];

  const button = (text, title, deed) => {
    const node = h("button", { type: "button", class: "button", title, "aria-describedby": id }, text);
    onPress(node, deed);
    return node;
  };
  const path = encodeURIComponent(name);
  const trigger = button("Trigger", "Look for a new image now, and deploy it if there is one", async (node) => {
    const { waiting } = record;
    const answer = !waiting ? "yes" : await confirmDialog(`Trigger ${legible(name)}?`,
      `Its images are looked for now. ${ofTrigger(waiting, name)}`, "Trigger", "Only check");
    if (answer) act(node, answer === "other" ? `/trigger/${path}?pass=false` : `/trigger/${path}`, name);
  });
  const first = () => (trigger.hidden ? redeploy : trigger);
  const redeploy = button("Redeploy", "Pull and recreate all containers", async (node) => {
    const also = record.waiting ? ` ${ofRedeploy(record.waiting)}` : "";
    const sure = await confirmDialog(`Redeploy ${legible(name)}?`,
      `Its images are pulled and all containers of the project are recreated. The service is briefly unavailable.${also}`, "Redeploy");
    if (sure) act(node, `/redeploy/${path}`, name);
  });
  const unblock = button("Unblock", "Allow the blocked image, or more restarts", async (node) => {
    const parts = record.exhausted ? ["The agent tries again to restart the containers that fail."] : [];
    if (record.blocked || !record.exhausted) {
      parts.push("The next check may deploy the image that failed. If it fails again, it is rolled back and blocked again; the service may be unavailable meanwhile.");
    }
    const sure = await confirmDialog(`Unblock ${legible(name)}?`, parts.join(" "), "Unblock");
    // Another user may have done it meanwhile. The button is then hidden and cannot regain the focus.
    if (node.hidden) first().focus();
    if (sure) act(node, `/unblock/${path}`, name);
  });
  unblock.hidden = true;
  const approve = button("Approve", "Approve the waiting update", async (node) => {
    const { image, digest } = record.waiting;
    const approver = approverOf(record);
    const sure = await confirmDialog(`Approve the update of ${legible(approver)}?`,
      `${legible(image)} may be deployed with ${legible(digest)}.`, "Approve");
    if (node.hidden) first().focus();
    if (sure) act(node, `/approve/${encodeURIComponent(approver)}`, approver, { digest });
  });
  approve.hidden = true;

  const node = h("tr", { role: "row" },
    cell("name",
      h("div", { class: "title" }, title, h("div", { class: "folds" }, ...folds.map((part) => part.button))),
      below),
    cell("status", h("div", { class: "state" }, word.node, deploy.node), note, held.node),
    cell("config", ...flags.map((f) => f.node)),
    cell("next", h("div", null, due, dueWord), lastLine),
    cell("resources", cpu.node, memory.node, noStats),
    cell("stats", list),
    cell("actions", trigger, redeploy, unblock, approve));

  return {
    node,
    recent,
    get record() { return record; },
    // The curves continue even if nothing changes.
    sample() {
      const now = Date.now();
      if (!record.has_stats || now - sampled < SAMPLE_MS) return;
      sampled = now;
      cpu.sample(record.cpu_percent);
      memory.sample(record.memory_percent);
    },
    // Updates the parts that only depend on the clock.
    tick() { if (record.deploy) deploy.set(record.deploy); },
    update(s) {
      record = s;
      const status = statusOf(s);
      word.set(status.look, status.glyph, s.status.replaceAll("_", " "));
      setAttribute(word.node, "title", s.status === "unhealthy" && s.unhealthy_reason === STOPPED ? "Stopped by hand" : status.hint);
      setAttribute(node, "class", `${status.needs ? "needs" : status.works ? "working" : ""}${s.deploy ? " deploying" : ""}`);
      deploy.set(s.deploy);

      const lines = [];
      if (s.exhausted) lines.push(`Given up after ${count(s.restart_failures, "failed restart")}: an operator must act.`);
      else if (s.degraded && s.restart_failures) lines.push(`${count(s.restart_failures, "restart")} so far did not help.`);
      else if (s.status === "unhealthy") lines.push(unwell(s));
      else if (isGone(s)) lines.push(`${s.unhealthy_reason}.`);
      else if (isDown(s)) lines.push(`The service is down. ${unwell(s)}`);
      if (s.errored) lines.push(s.errored);
      if (s.blocked) lines.push(blockedText(s));
      else if (s.not_found) lines.push("The image does not exist on this machine. Waiting for a new one:");
      if (s.way_back === "at_risk") lines.push(`A rollback would fail now: ${s.way_back_reason ?? "no reason given"}`);
      setVisible(note, lines.length > 0);
      setText(said, lines.join("\n"));
      setAttribute(note, "class", status.needs && status.look !== "is-warn" ? "note" : "note is-warn");
      setVisible(blockedDigest.node, Boolean(s.blocked));
      setVisible(notFoundDigest.node, Boolean(s.not_found) && !s.blocked);
      if (s.blocked) blockedDigest.set(s.blocked);
      if (s.not_found) notFoundDigest.set(s.not_found);

      [s.auto_update, s.auto_heal, s.auto_start].forEach((on, i) => flags[i].set(on));

      const checking = s.check_status === "checking";
      setVisible(due, Boolean(s.next_check) && !checking);
      if (s.next_check) setTime(due, s.next_check);
      setText(dueWord, checking ? "checking…" : s.next_check ? "" : s.deploying ? "after the deploy" : "not polled");
      setVisible(lastLine, Boolean(s.last_check));
      if (s.last_check) setTime(last, s.last_check);

      for (const part of [cpu.node, memory.node]) setVisible(part, Boolean(s.has_stats));
      setVisible(noStats, !s.has_stats);
      if (s.has_stats) {
        cpu.set(s.cpu_percent, `${s.cpu_percent.toFixed(1)} %`, "Percent of one core");
        memory.set(s.memory_percent, mebibytes(s.memory_usage_mb),
          `${s.memory_percent.toFixed(1)} % of ${mebibytes(s.memory_limit_mb)}`);
      }

      tally[0](s.updates_total);
      tally[1](s.rollbacks_total, true);
      tally[2](s.restarts_total);
      tally[3](s.failures_total, true);

      held.set(s.waiting, s.blocked_by);
      const mayApprove = Boolean(approverOf(s));
      if (!mayApprove && document.activeElement === approve) first().focus();
      setVisible(approve, mayApprove);

      // Without auto_update the answer would always be that nothing was started.
      if (!s.auto_update && document.activeElement === trigger) redeploy.focus();
      setVisible(trigger, s.auto_update);
      setVisible(redeploy, s.status !== "not_watched");

      const mayUnblock = s.status === "blocked" || Boolean(s.exhausted);
      if (!mayUnblock && document.activeElement === unblock) first().focus();
      setVisible(unblock, mayUnblock);

      containers.label(s.containers?.length);
      images.label(s.images && `${s.images.length}${s.images.some((image) => image.newer) ? ", newer tag" : ""}`);
      containers.refresh(s);
      images.refresh(s);
      why.refresh(s);
      history.refresh(s);
    },
  };
}

// Why it is unhealthy, and whether the configuration prevents healing.
function unwell(s) {
  if (s.unhealthy_reason === STOPPED) return "Stopped by hand.";
  return `${s.unhealthy_reason ?? "Its containers are unhealthy"}.${s.auto_heal ? "" : " Auto heal is off, so nothing restarts it."}`;
}

// Whether its containers fail, while its status is about an image or a check.
const isDown = (s) => ["blocked", "errored", "not_found"].includes(s.status) && s.healthy === false && !s.deploy;

// Why an image is blocked, and what became of its service.
function blockedText({ name, blocked, failed_update: failed }) {
  if (!failed) return `Blocked after a rollback${blame(name)}`;
  if (failed.by_hand && (!failed.digest || failed.digest === blocked)) return "Blocked: an earlier image was put back by hand.";
  if (failed.by_hand) return "Blocked: it failed here before.";
  return `${failed.rolled_back ? "Blocked after a rollback" : "The rollback failed, and nothing more is tried"}: ${failed.reason}`;
}

// The reason of a service's last failed deployment.
function blame(name) {
  const entry = events.find((e) => e.service === name && e.event === "rolled_back");
  return entry?.reason ? `: ${entry.reason}` : ".";
}

// --- actions -----------------------------------------------------------------------------------------------------

// Gates that a trigger passes.
const PASSED_BY_TRIGGER = ["approval", "min_age", "window", "project"];
// Gates that a redeployment does not pass.
const KEPT_BY = ["blocked", "signature", "snapshot"];

// What a trigger does to updates that are held. The row shows one of them with one gate, but a trigger counts for all of them, and
// once the gates open that it does not pass.
function ofTrigger({ gate, image, clear }, name) {
  const passes = PASSED_BY_TRIGGER.includes(gate) || clear === `POST /trigger/${name}`;
  const shown = passes
    ? `This also deploys the update of ${legible(image)} that is held back (gate ${legible(gate)}).`
    : `The update of ${legible(image)} stays held back (gate ${legible(gate)}), which a trigger does not pass.`;
  return `${shown} For every update that is found, it is the approval, unless ask_on wants one, and it passes min_age and window, also later, when other gates open.`;
}

// What a redeployment does to updates that are held.
function ofRedeploy({ gate, image, why }) {
  if (gate === "definition") return `It applies the configured compose files, and deploys the update that is held back: ${legible(why)}.`;
  return KEPT_BY.includes(gate)
    ? `The update of ${legible(image)} stays held back (gate ${legible(gate)}); others that are held back may be deployed.`
    : `This also deploys the update that is held back (gate ${legible(gate)}), and others that are may be deployed, too.`;
}

const APPROVE = "POST /approve/";
// The service whose approval an update waits for: its own, or another one of the project that has the same image.
const approverOf = ({ waiting }) => (waiting?.clear?.startsWith(APPROVE) ? waiting.clear.slice(APPROVE.length) : undefined);

const ANSWERS = {
  triggered: (name) => `A check of ${name} has started.`,
  redeploying: (name) => `The redeployment of ${name} has started.`,
  unblocked: (name) => `${name} is no longer blocked. Its next check may deploy the image.`,
  rolling_back: (name) => `${name} goes back to an earlier image.`,
  approved: (name) => `The update of ${name} is approved.`,
  nothing_waiting: (name) => `No update of ${name} is waiting for approval.`,
  not_blocked: (name) => `${name} has no blocked image. Failed restarts no longer count.`,
};

// A busy button ignores further clicks. It stays enabled, since a disabled button would lose the focus.
function onPress(button, deed) {
  button.addEventListener("click", () => { if (!button.hasAttribute("aria-busy")) deed(button); });
}

async function act(button, path, name, body) {
  for (const state of ["aria-busy", "aria-disabled"]) setAttribute(button, state, "true");
  try {
    const answer = await ask("POST", path, body);
    if (answer?.status === "skipped") toast("Skipped.", `${name}: ${answer.reason}.`, "skipped");
    else {
      const kept = (answer?.kept ?? []).map((one) => ` ${legible(one.image)} keeps what it runs (${one.gate}).`).join("");
      toast("Done.", (ANSWERS[answer?.status]?.(name) ?? `${name}: ${answer?.status ?? "accepted"}.`) + kept);
    }
  } catch (fault) {
    toast("Failed.", `${name}: ${fault.message}`, "failed");
  } finally {
    for (const state of ["aria-busy", "aria-disabled"]) button.removeAttribute(state);
  }
}

onPress(byId("check-all"), (button) => act(button, "/trigger", "all services"));

// --- all rows ----------------------------------------------------------------------------------------------------

// Rows are updated in slices of a few milliseconds, so that the page stays responsive with hundreds of services. A newer
// status replaces the rest of an older one.
let pending = [];
let scheduled = false;

// The row of a service that the configuration leaves out.
function notWatched({ name, reason }) {
  return { name, status: "not_watched", errored: reason, auto_update: false, updates_total: 0, rollbacks_total: 0, restarts_total: 0, failures_total: 0 };
}

function takeStatus(report) {
  const first = services === null;
  services = [...report.services, ...(report.left_out ?? []).map(notWatched)];
  if (first) document.body.dataset.ready = "1";
  const names = new Set(services.map((s) => s.name));
  for (const [name, row] of rows) {
    if (names.has(name)) continue;
    row.node.remove();
    rows.delete(name);
  }
  // Pending rows go first, so that a busy stream cannot starve the last ones.
  const waiting = new Set(pending);
  pending = [...services.filter((s) => waiting.has(s.name)), ...services.filter((s) => !waiting.has(s.name))].map((s) => s.name);
  byName = new Map(services.map((s) => [s.name, s]));
  schedule();
}
let byName = new Map();

function schedule() {
  if (scheduled) return;
  scheduled = true;
  // A hidden page gets no animation frames, but must be up to date when it is shown.
  if (document.hidden) setTimeout(work, 200);
  else requestAnimationFrame(work);
}

// A frame that was requested before the page was hidden comes when it is shown again, if at all.
document.addEventListener("visibilitychange", () => { if (scheduled) setTimeout(work, 0); });

function work() {
  if (!scheduled) return;
  scheduled = false;
  const end = performance.now() + FRAME_MS;
  let done = 0;
  while (done < pending.length && performance.now() < end) {
    const name = pending[done++];
    let row = rows.get(name);
    if (!row) {
      rows.set(name, (row = makeRow(name)));
      byId("rows").append(row.node);
    }
    const record = byName.get(name);
    if (!same(row.record, record)) {
      row.update(record);
      setVisible(row.node, isShown(record));
    }
    row.sample();
  }
  pending = pending.slice(done);
  if (pending.length) return schedule();
  putInOrder();
  refilter();
}

// Puts the rows in configuration order; only rows out of place are moved.
function putInOrder() {
  let place = byId("rows").firstChild;
  for (const { name } of services) {
    const { node } = rows.get(name);
    if (node === place) place = place.nextSibling;
    else byId("rows").insertBefore(node, place);
  }
}

// --- search, filter, summary -------------------------------------------------------------------------------------

const FILTERS = [
  ["all", "All", () => true],
  ["needs", "Need attention", (s) => statusOf(s).needs],
  ...Object.keys(STATUSES).map((word) => [word, word.replaceAll("_", " "), (s) => s.status === word]),
];
const filterOf = (key) => FILTERS.find(([k]) => k === key)[2];

function matches(s) {
  if (!filterOf(filter.status)(s)) return false;
  if (!filter.text) return true;
  const hay = [s.name, ...(s.images ?? []).map((i) => i.image), ...(s.containers ?? []).map((c) => c.name)];
  return hay.some((text) => text.toLowerCase().includes(filter.text));
}

// The row that has the focus. An action may change its status, but a filter must not hide the row while it is in use.
let inUse = null;
document.addEventListener("focusin", ({ target }) => {
  if (!target.closest("dialog")) inUse = target.closest("#rows > tr");
});
const isShown = (s) => matches(s) || rows.get(s.name)?.node === inUse;

function filterChip([key, text]) {
  const n = h("span", { class: "n" });
  const node = h("button", { type: "button", class: "chip", "aria-pressed": "false", "data-filter": key }, text, " ", n);
  node.addEventListener("click", () => {
    filter.status = filter.status === key ? "all" : key;
    refilter();
  });
  return {
    node,
    update([key, , test]) {
      setText(n, services.filter(test).length);
      setAttribute(node, "aria-pressed", String(filter.status === key));
    },
  };
}

function refilter() {
  if (!services) return;
  for (const s of services) if (rows.has(s.name)) setVisible(rows.get(s.name).node, isShown(s));
  summarize();
}

search.addEventListener("input", () => {
  filter.text = search.value.trim().toLowerCase();
  refilter();
});

byId("clear").addEventListener("click", () => {
  search.value = filter.text = "";
  filter.status = "all";
  refilter();
  search.focus();
});

function summarize() {
  const total = services.length;
  const needs = services.filter((s) => statusOf(s).needs).length;
  const works = services.filter((s) => statusOf(s).works).length;
  const ok = services.filter((s) => s.status === "ok").length;
  const unknown = total - ok - needs - works;
  const parts = [`${count(ok, "service")} ok`];
  if (needs) parts.push(`${needs} ${needs === 1 ? "needs" : "need"} attention`);
  if (works) parts.push(`${works} in progress`);
  if (unknown) parts.push(`${unknown} unknown`);
  setText(byId("summary"), total ? parts.join(" · ") : "No services");
  const heading = `${needs ? `(${needs}) ` : ""}Evenkeel · ${here}`;
  if (document.title !== heading) document.title = heading;

  const offered = FILTERS.filter(([key, , test]) => key === "all" || key === filter.status || services.some(test));
  reconcile(byId("filters"), total ? offered : [], ([key]) => key, filterChip);
  const visible = services.filter(isShown).length;
  setText(byId("shown"), !total ? "" : visible === total ? total : `${visible} of ${total}`);
  setVisible(byId("empty"), visible === 0);
  if (visible) return;
  setVisible(byId("clear"), total > 0);
  setText(byId("empty-title"), total ? "No service matches" : "No services are configured");
  setText(byId("empty-text"), total
    ? "No service matches both the search and the filter."
    : "Add one under \"services\" in the agent's configuration file (/etc/evenkeel/config.json), then reload or restart the agent.");
}

// Before the first status, there is only the state of the connection to show.
function showWaiting(state) {
  if (services !== null) return;
  const failed = state === "stale" || (state === "reconnecting" && Date.now() - began > 3000);
  setText(byId("summary"), failed ? "No answer from the agent" : "Waiting for the agent…");
  setVisible(byId("empty"), true);
  setText(byId("empty-title"), failed ? "The agent does not answer" : "Waiting for the agent…");
  setText(byId("empty-text"), failed
    ? "Is it running? Check its log, for example with journalctl -u evenkeel-agent, and the tunnel if you use one. This page keeps trying."
    : "");
}
const began = Date.now();

// --- events ------------------------------------------------------------------------------------------------------

function eventRow(e, withService) {
  const line = [
    cell("soft", timeNode("ago", e.timestamp)),
    cell("", h("span", { class: "untrusted" }, kindWords(e.event))),
    cell("right", levelBadge(e.level)),
    cell("wide", messageNode(e)),
  ];
  if (withService) line.splice(1, 0, cell("untrusted", legible(e.service)));
  return { node: h("tr", { role: "row", class: e.live ? "fresh" : "" }, ...line) };
}

const heardOf = new Set(); // services with new entries that are not shown yet
function takeEvent(entry, live) {
  // An entry may arrive both from the stream and from the audit file, and again after a reconnect.
  const key = [entry.timestamp, entry.service, entry.event, entry.container ?? "", entry.message].join("\u0000");
  if (events.some((e) => e.key === key)) return;
  // An entry dated in the future counts as of now; otherwise it would stay ahead of all later ones.
  const at = Math.min(Date.parse(entry.timestamp) || 0, Date.now());
  const place = events.findIndex((e) => e.at <= at);
  if (place === -1 && events.length >= KEPT_EVENTS) return;
  events.splice(place === -1 ? events.length : place, 0, { ...entry, key, at, live });
  events.length = Math.min(events.length, KEPT_EVENTS);
  heardOf.add(entry.service);
  showEvents();
}

const showEvents = paced(250, () => {
  limitHighlights(events);
  reconcile(byId("events"), events, (e) => e.key, (e) => eventRow(e, true));
  setVisible(byId("no-events"), events.length === 0);
  setText(byId("events-count"), events.length ? `last ${events.length}` : "");
  for (const row of rows.values()) row.recent.refresh(row.record);
  // An entry may contain the reason why its service is blocked.
  for (const name of heardOf) {
    const row = rows.get(name);
    if (row?.record.blocked) row.update(row.record);
  }
  heardOf.clear();
});

// --- health and connection ---------------------------------------------------------------------------------------

async function readHealth() {
  let health;
  try {
    health = await ask("GET", "/health");
  } catch (fault) {
    // A 503 response describes what is wrong with the engine.
    if (fault.status !== 503 || !fault.body) return;
    health = fault.body;
  }
  // It is read again when the stream is connected, which is after all services are loaded.
  if (health.status === "starting") return;
  const lines = [...(health.config_warnings ?? [])];
  const down = health.status !== "ok";
  if (health.state) lines.unshift(health.state);
  if (down) lines.unshift(health.error ?? "no reason given");
  setVisible(byId("notice"), lines.length > 0);
  setAttribute(byId("notice"), "class", down || health.state ? "notice bad" : "notice");
  setText(byId("notice-title"), down
    ? "The container engine does not answer; nothing is deployed or healed meanwhile."
    : health.state ? "The agent can't write its state; nothing is deployed or healed meanwhile."
    : `The configuration has ${count(lines.length, "warning")}:`);
  reconcile(byId("notice-list"), lines, (line) => line, (line) => ({ node: h("li", { class: "untrusted" }, legible(line)) }));
}

async function readAudit() {
  const entries = await ask("GET", `/audit?limit=${KEPT_EVENTS}`).catch(() => []);
  for (const entry of entries) takeEvent(entry, false);
}

// The numbering that the entries belong to. If it is another one, the tunnel leads to another agent, or this one has lost its
// state: nothing that the page has kept is true of it.
let epoch = null;
function takeEpoch(now) {
  if (epoch !== null && epoch !== now) location.reload();
  epoch = now;
}

const connection = new Connection({
  url: "/ui/stream",
  events: {
    epoch: takeEpoch,
    status: takeStatus,
    audit: (entry) => takeEvent(entry, Date.now() - began > 3000),
  },
  poll: async () => {
    const report = await ask("GET", "/status");
    // A starting agent has no services to show until they are loaded.
    return report.starting ? {} : { status: report };
  },
  badge: byId("link"),
  quiet: 45000, // a status arrives at least every 30 seconds
});
let wasLive = false;
connection.onstate = (state) => {
  showWaiting(state);
  if (state === "live" && !wasLive) {
    readHealth();
    readAudit();
  }
  wasLive = state === "live";
};
function readAll() {
  if (document.hidden) return;
  readHealth();
  readAudit();
}
readAll();
document.addEventListener("visibilitychange", readAll);
setInterval(() => { if (!document.hidden) readHealth(); }, 30000);
setInterval(() => { if (!document.hidden) for (const row of rows.values()) row.tick(); }, 1000);
