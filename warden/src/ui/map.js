// The images of all machines (`GET /fleet/images`): freezes, withheld digests, and a grid of images and machines.

const MAP_MS = 30000;
// Agents report at least hourly; a report that is older than two intervals may be outdated.
const OLD_MS = 2.5 * 3600 * 1000;
// The states of a cell, the worst first.
const CELLS = {
  failed: { look: "is-bad", glyph: "✕", word: "failed here" },
  withheld: { look: "is-bad", glyph: "⊘", word: "withheld" },
  blocked: { look: "is-bad", glyph: "⊘", word: "blocked here" },
  trying: { look: "is-busy", glyph: "↻", word: "being tried" },
  waiting: { look: "is-warn", glyph: "◷", word: "waiting" },
  behind: { look: "is-warn", glyph: "▲", word: "behind" },
  current: { look: "is-ok", glyph: "✓", word: "up to date" },
  absent: { look: "", glyph: "·", word: "not running" },
};
const CELL_ORDER = Object.keys(CELLS);
const VIEWS = {
  all: ["All", () => true],
  behind: ["Behind", (state) => !["current", "absent"].includes(state)],
  waiting: ["Waiting", (state) => state === "waiting"],
  failed: ["Failed", (state) => ["failed", "withheld", "blocked"].includes(state)],
};

let map = null; // the last answer of /fleet/images; null before the first one
let mapView = "all";
let mapRows = []; // the rows of the grid

const shortDigest = (digest) => legible(digest).replace(/^sha256:/, "").slice(0, 12);
const ageOf = (iso) => span(Math.max(0, Math.floor((clockNow() - Date.parse(iso)) / 1000)));
const failedOf = (repository, digest) => map?.failed.find((f) => f.repository === repository && f.digest === digest);

function stateOf(repository, cell) {
  if (cell.verdict === "trying") return "trying";
  if (cell.verdict === "failed") return "failed";
  const isBehind = cell.available && cell.available !== cell.digest;
  if (isBehind && failedOf(repository, cell.available)) return "withheld";
  if (isBehind && cell.blocked === cell.available) return "blocked";
  if (cell.gate) return "waiting";
  if (isBehind) return "behind";
  return cell.digest ? "current" : "absent";
}

// The second line of a cell.
function remarkOf(cell, state) {
  const behind = cell.behind_since ? `behind ${ageOf(cell.behind_since)}` : "";
  if (state === "waiting") return [behind, cell.gate].filter(Boolean).join(" · ");
  if (state === "behind") return behind || CELLS.behind.word;
  if (state === "current" && cell.proven_at) return `proven ${ageOf(cell.proven_at)} ago`;
  return CELLS[state].word;
}

// The rows of the grid: for each repository, its images on each machine, the worst first.
function rowsOf(map) {
  return map.images.map(({ repository, cells }) => {
    const places = new Map();
    for (const cell of cells) {
      const seen = { ...cell, repository, state: stateOf(repository, cell) };
      if (places.has(cell.machine)) places.get(cell.machine).push(seen);
      else places.set(cell.machine, [seen]);
    }
    for (const all of places.values()) {
      if (all.length > 1) all.sort((a, b) => CELL_ORDER.indexOf(a.state) - CELL_ORDER.indexOf(b.state));
    }
    return { repository, places };
  });
}

async function readMap() {
  let answer;
  try {
    answer = await ask("GET", "/fleet/images");
  } catch (fault) {
    if (fault.status === 401) location.reload();
    throw fault;
  }
  map = answer;
  setVisible(byId("freeze"), true);
  showMap();
}

const readMapSoon = paced(2000, () => readMap().catch(() => { /* retried soon */ }));

function showMap() {
  reconcile(byId("freezes"), map.freezes, (f) => f.id, freezeItem);
  setVisible(byId("freezes"), map.freezes.length > 0);
  setVisible(byId("map-section"), map.images.length + map.failed.length > 0);
  reconcile(byId("withheld"), map.failed, (f) => `${f.repository} ${withheldTitle(f)}`, withheldItem);
  setVisible(byId("withheld"), map.failed.length > 0);
  mapRows = rowsOf(map);
  const reporting = new Set(map.images.flatMap((image) => image.cells.map((cell) => cell.machine)));
  const columns = map.machines.filter((id) => reporting.has(id));
  const silent = map.machines.filter((id) => !reporting.has(id));
  setText(byId("map-count"), `${count(mapRows.length, "image")} on ${count(columns.length, "machine")}`);
  const notes = [];
  if (silent.length) notes.push(`No inventory from ${silent.join(", ")}.`);
  if (map.left_out) notes.push(`${count(map.left_out, "image")} that are up to date are not listed, since there are too many.`);
  setVisible(byId("map-note"), notes.length > 0);
  setText(byId("map-note"), notes.join(" "));
  setVisible(byId("map-frame"), mapRows.length > 0);
  showGrid(columns);
  showViews();
}

// --- grid --------------------------------------------------------------------------------------------------------

let shownColumns = "";
function showGrid(columns) {
  const key = columns.join("\u0000");
  if (key !== shownColumns) {
    shownColumns = key;
    byId("map").style.setProperty("--machines", columns.length);
    byId("map-machines").replaceChildren(h("th", { role: "columnheader", scope: "col" }, "Image"),
      ...columns.map((id) => h("th", { role: "columnheader", scope: "col", class: "untrusted" }, legible(id))));
    const rows = byId("map-rows");
    rows.views?.clear();
    rows.replaceChildren();
  }
  reconcile(byId("map-rows"), mapRows, (row) => row.repository, () => mapRow(columns));
  const rows = [...byId("map-rows").children].filter((row) => !row.hidden);
  rows.slice(0, FIRST_ROWS).forEach((row) => row.fill());
  // A cell hidden by a filter cannot be the tab stop.
  if (rows[0]?.cells[1] && !byId("map-rows").querySelector("tr:not([hidden]) td[tabindex=\"0\"]")) tabTo(rows[0].cells[1]);
  fillSoon();
}

// Rows whose cells are created at once: about one screen. The others are filled while the page is idle, or a little later on
// a page that is never idle.
const FIRST_ROWS = 12;
const BUSY_MS = 100;
const whenIdle = (work) => window.requestIdleCallback
  ? window.requestIdleCallback(work, { timeout: BUSY_MS })
  : setTimeout(() => work({ timeRemaining: () => 0 }), 20);
let filling = false;
function fillSoon() {
  if (filling) return;
  filling = true;
  setTimeout(() => whenIdle(fillRows), 200);
}

function fillRows(deadline) {
  const empty = [...byId("map-rows").children].filter((row) => row.cells.length === 1);
  let filled = 0;
  for (const row of empty) {
    row.fill();
    row.classList.add("later");
    filled += 1;
    if (deadline.timeRemaining() < 5) break;
  }
  filling = filled < empty.length;
  if (filling) whenIdle(fillRows);
}

function mapRow(columns) {
  const name = h("th", { role: "rowheader", scope: "row", class: "untrusted" });
  const node = h("tr", { role: "row" }, name);
  let cells;
  const showCells = () => cells.forEach((cell, index) => cell.update(node.row.places.get(columns[index])));
  node.fill = () => {
    if (cells) return;
    cells = columns.map(mapCell);
    showCells();
    node.append(...cells.map((cell) => cell.node));
  };
  return {
    node,
    update(row) {
      node.row = row;
      setText(name, row.repository);
      if (cells) showCells();
      const isWanted = (all) => all.some((one) => VIEWS[mapView][1](one.state));
      setVisible(node, mapView === "all" || [...row.places.values()].some(isWanted));
    },
  };
}

// A fleet has thousands of cells, so each is one element with two texts, updated only when needed.
function mapCell(machine) {
  const node = document.createElement("td");
  node.setAttribute("role", "gridcell");
  node.dataset.machine = legible(machine);
  node.tabIndex = -1;
  node.machine = machine;
  let shown = "";
  return {
    node,
    update(all) {
      const worst = all?.[0];
      if (!worst) {
        if (shown === "none") return;
        shown = "none";
        node.className = "none";
        node.replaceChildren();
        node.setAttribute("aria-label", `${legible(machine)}: does not run it`);
        return;
      }
      const { look, glyph } = CELLS[worst.state];
      const digest = worst.digest ? shortDigest(worst.digest) : "–";
      const more = all.length > 1 ? ` +${all.length - 1}` : "";
      const isOld = clockNow() - Date.parse(worst.reported) > OLD_MS;
      const remark = legible(remarkOf(worst, worst.state)) + (isOld ? " · old report" : "");
      const key = [look, digest, more, remark].join("\u0000");
      if (shown === key) return;
      shown = key;
      node.className = `${look}${isOld ? " old" : ""}`;
      node.replaceChildren(`${glyph} ${digest}${more}\n`, remark);
      node.removeAttribute("aria-label");
    },
  };
}

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e6], End: [0, 1e6] };

// One cell is the tab stop; the arrow keys move to the others.
function tabTo(cell) {
  for (const other of byId("map-rows").querySelectorAll("td[tabindex=\"0\"]")) other.tabIndex = -1;
  cell.tabIndex = 0;
}

function goTo(cell) {
  tabTo(cell);
  cell.focus();
}

byId("map").addEventListener("keydown", (event) => {
  const cell = event.target.closest("td");
  if (!cell) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    openCell(cell);
    return;
  }
  const step = ARROWS[event.key];
  if (!step || event.altKey || event.metaKey || event.ctrlKey) return;
  event.preventDefault();
  const rows = [...byId("map-rows").children].filter((row) => !row.hidden);
  const within = (n, most) => Math.min(Math.max(n, 0), most);
  const row = rows[within(rows.indexOf(cell.parentNode) + step[0], rows.length - 1)];
  row.fill();
  goTo(row.cells[within(cell.cellIndex + step[1], row.cells.length - 1) || 1]);
});

byId("map").addEventListener("click", (event) => {
  const cell = event.target.closest("td");
  if (!cell) return;
  goTo(cell);
  openCell(cell);
});

function showViews() {
  const states = [...mapRows].map((row) => [...row.places.values()].flat().map((cell) => cell.state));
  const views = Object.entries(VIEWS).map(([view, [name, fits]]) => ({ view, name, n: states.filter((all) => all.some(fits)).length }));
  reconcile(byId("map-filters"), views, (v) => v.view, viewChip);
}

function viewChip({ view, name }) {
  const n = h("span", { class: "n" });
  const node = h("button", { type: "button", class: "chip", "data-view": view, onclick: () => { mapView = view; showMap(); } }, name, " ", n);
  return {
    node,
    update(v) {
      setText(n, v.n);
      setAttribute(node, "aria-pressed", String(mapView === view));
    },
  };
}

// --- one cell in full --------------------------------------------------------------------------------------------

function openCell(cell) {
  const all = cell.parentNode.row.places.get(cell.machine);
  if (!all) return;
  setText(byId("cell-title"), `${all[0].repository} on ${cell.machine}`);
  byId("cell-body").replaceChildren(...all.map(cellDetail));
  byId("cell").showModal();
  byId("cell-close").focus();
}

byId("cell-close").addEventListener("click", () => byId("cell").close());

function cellDetail(cell) {
  const list = h("dl", { class: "box" });
  const add = (name, ...nodes) => list.append(h("dt", null, name), h("dd", null, ...nodes));
  const words = (text) => h("span", { class: "untrusted" }, legible(text));
  const { look, glyph, word } = CELLS[cell.state];
  const made = badge();
  made.set(look, glyph, word);
  add("State", made.node);
  add("Service", words(cell.service));
  add("Image", words(cell.image));
  add("Runs", cell.digest ? digestNode("running digest", cell.digest).node : words("nothing"));
  if (cell.proven_at) add("Proven", timeNode("ago", cell.proven_at));
  if (cell.available && cell.available !== cell.digest) add("Available", digestNode("available digest", cell.available).node);
  if (cell.behind_since) add("Behind", timeNode("since", cell.behind_since));
  if (cell.gate) add("Waits for", words(cell.why ? `${cell.gate}: ${cell.why}` : cell.gate));
  if (cell.gate === "approval" || cell.gate === "breaking") {
    // A warden cannot make an agent deploy anything, so it cannot approve either.
    add("Approve", words(`at the agent on ${cell.machine}: on its page, or on that machine with`), " ", h("code", { class: "untrusted" }, `evenkeel approve ${legible(cell.service)}`));
  }
  if (cell.blocked) add("Blocked here", digestNode("blocked digest", cell.blocked).node);
  add("Ring", words(cell.ring));
  add("Reported", timeNode("ago", cell.reported));
  const failed = failedOf(cell.repository, cell.available) ?? failedOf(cell.repository, cell.blocked) ?? failedOf(cell.repository, cell.digest);
  return h("section", { class: "cell-detail" }, list, ...(failed ? [failedBox(failed)] : []));
}

// Where and why a digest failed, its black box, and the button to allow it again.
function failedBox(failed) {
  const box = h("div", { class: "failed-box" }, h("h3", { class: "untrusted" }, withheldTitle(failed)));
  if (failed.reason) box.append(h("p", { class: "untrusted" }, legible(failed.reason)));
  if (failed.output) {
    box.append(h("p", { class: "small soft" }, "Output, last lines ", copyButton("output", () => failed.output)),
      h("pre", { class: "output", tabindex: "0", role: "region", "aria-label": "Output" }, legible(failed.output)));
  }
  box.append(unblockButton(failed));
  return box;
}

// The machines behind a decision; `more` of them are not listed.
const named = (agents, more) => agents.map(legible).join(", ") + (more ? ` and ${count(more, "other machine")}` : "");
const withheldTitle = (failed) => `${shortDigest(failed.digest)} failed on ${named(failed.agents, failed.more_agents)}`;

function withheldItem(failed) {
  const since = timeNode("ago", failed.since);
  const more = h("details", { class: "more" }, h("summary", null, h("span", { class: "untrusted" },
    `${legible(failed.repository)} `, h("strong", null, withheldTitle(failed)), " ", since, " and is withheld from the others")));
  more.addEventListener("toggle", () => { if (more.open && more.children.length === 1) more.append(failedBox(failed)); });
  return { node: h("li", null, h("span", { class: "sign", "aria-hidden": "true" }, "⊘"), more) };
}

function unblockButton(failed) {
  const node = h("button", { type: "button", class: "button" }, "Unblock for the fleet");
  node.addEventListener("click", async () => {
    if (node.hasAttribute("aria-busy")) return;
    const sure = await confirmDialog("Unblock this digest for the fleet?",
      `Machines may try ${legible(failed.repository)} with ${shortDigest(failed.digest)} again, one of them first. Machines that have blocked it themselves keep their block.`, "Unblock");
    if (!sure) return;
    const done = await change(node, "/unblock", { image: failed.repository, digest: failed.digest }, (answer) =>
      (answer.status === "not_blocked" ? "It was no longer withheld." : "Machines may try it again."));
    if (done) byId("cell").close();
  });
  return node;
}

// --- freezes -----------------------------------------------------------------------------------------------------

function freezeItem(freeze) {
  const { machine, image } = freeze.scope ?? {};
  const scope = [image && `of ${image}`, machine && `on ${machine}`].filter(Boolean).join(" ");
  const thaw = h("button", { type: "button", class: "button" }, "Thaw", h("span", { class: "sr" }, ` the freeze: ${legible(freeze.reason)}`));
  thaw.addEventListener("click", async () => {
    if (thaw.hasAttribute("aria-busy")) return;
    if (!(await confirmDialog("Thaw?", "Updates that wait for the end of this freeze may start at once.", "Thaw"))) return;
    await change(thaw, "/thaw", { id: freeze.id }, (answer) =>
      (answer.status === "nothing_frozen" ? "That freeze was already over." : "Updates may start again."));
    byId("freeze").focus();
  });
  const where = freeze.agents?.length ? ` on ${named(freeze.agents, 0)}` : "";
  const by = freeze.by === "fuse" ? `by the fuse, after too many rollbacks${where}` : `by ${legible(freeze.by)}`;
  const until = new Date(freeze.until).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  return {
    node: h("li", { class: "notice" }, h("span", { "aria-hidden": "true" }, "❄"),
      h("div", null,
        h("strong", { class: "untrusted" }, `Updates ${legible(scope)}${scope ? " " : ""}are frozen: ${legible(freeze.reason)}`),
        h("p", { class: "small" }, `${by}, `, timeNode("ago", freeze.since), ", until ", until, " (", timeNode("ahead", freeze.until), ")")),
      thaw),
  };
}

// Requests a change, shows the outcome, and reloads the map. Returns whether the change was made.
async function change(button, path, body, words) {
  for (const state of ["aria-busy", "aria-disabled"]) setAttribute(button, state, "true");
  try {
    toast("Done.", words(await ask("POST", path, body)));
    await readMap().catch(() => { /* retried soon */ });
    return true;
  } catch (fault) {
    toast("Failed.", fault.message, "failed");
    return false;
  } finally {
    for (const state of ["aria-busy", "aria-disabled"]) button.removeAttribute(state);
  }
}

const freezeForm = byId("freeze-form");

byId("freeze").addEventListener("click", () => {
  freezeForm.reset();
  setVisible(byId("freeze-fault"), false);
  setVisible(byId("freeze-until"), false);
  fillSelect(freezeForm.elements.machine, map?.machines ?? []);
  fillSelect(freezeForm.elements.image, map?.images.map((image) => image.repository) ?? []);
  byId("freeze-dialog").showModal();
  freezeForm.elements.reason.focus();
});
byId("freeze-no").addEventListener("click", () => byId("freeze-dialog").close());
freezeForm.elements.duration.addEventListener("input", () => setVisible(byId("freeze-until"), !freezeForm.elements.duration.value));

function fillSelect(list, values) {
  list.replaceChildren(list.options[0], ...values.map((value) => h("option", { value }, legible(value))));
}

freezeForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { reason, duration, until, machine, image } = freezeForm.elements;
  const refuse = (words, field) => {
    setText(byId("freeze-fault"), words);
    setVisible(byId("freeze-fault"), true);
    field?.focus();
  };
  if (!reason.value.trim()) return refuse("Give a reason, so that others know why updates are frozen.", reason);
  const end = duration.value ? clockNow() + 1000 * Number(duration.value) : Date.parse(until.value);
  if (Number.isNaN(end)) return refuse("Give the date and time at which the freeze ends.", until);
  const scope = { ...(machine.value && { machine: machine.value }), ...(image.value && { image: image.value }) };
  const button = byId("freeze-yes");
  if (button.hasAttribute("aria-busy")) return;
  for (const state of ["aria-busy", "aria-disabled"]) setAttribute(button, state, "true");
  try {
    const answer = await ask("POST", "/freeze", { reason: reason.value.trim(), until: new Date(end).toISOString(), scope });
    byId("freeze-dialog").close();
    toast("Updates are frozen.", `Until ${new Date(answer.until).toLocaleString()}.`);
    await readMap().catch(() => { /* retried soon */ });
  } catch (fault) {
    refuse(fault.message);
  } finally {
    for (const state of ["aria-busy", "aria-disabled"]) button.removeAttribute(state);
  }
});
