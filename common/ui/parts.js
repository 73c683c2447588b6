// Shared code of both pages. Untrusted text is only inserted as text: through `setText`, `h` and `textContent`.

// The path below which the program is served: the configured one, or that of a proxy that removes it.
const base = location.pathname.replace(/\/(ui|login)?$/, "");
const here = location.host + base;

const byId = (id) => document.getElementById(id);

// Creates an element with attributes, listeners (`onclick`) and children.
function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// --- text --------------------------------------------------------------------------------------------------------

// eslint-disable-next-line no-control-regex
const SUSPECT = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c]/;
const TERMINAL = /\u001b\[[0-?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c]/g;

// Removes colour codes and shows other invisible characters (control, bidi) by their number.
function legible(value) {
  const text = String(value ?? "");
  if (!SUSPECT.test(text)) return text;
  return text.replace(/\r\n/g, "\n").replace(TERMINAL, "").replace(HIDDEN, (sign) => {
    const code = sign.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

// Sets the text of a node, but only touches the DOM if it changed.
function setText(node, value) {
  const text = legible(value);
  if (node.textContent === text) return;
  if (node.childNodes.length === 1 && node.firstChild.nodeType === 3) node.firstChild.data = text;
  else node.textContent = text;
}

function setVisible(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

function bytes(n) {
  if (n >= 1 << 30) return `${(n / (1 << 30)).toFixed(2)} GiB`;
  if (n >= 1 << 20) return `${(n / (1 << 20)).toFixed(1)} MiB`;
  return `${Math.ceil(n / 1024)} KiB`;
}

const mebibytes = (n) => (n >= 1024 ? `${(n / 1024).toFixed(n >= 10240 ? 0 : 1)} GiB` : `${n.toFixed(n >= 100 ? 0 : 1)} MiB`);

// --- time --------------------------------------------------------------------------------------------------------

// Offset of the program's clock from the browser's, taken from the Date header of its responses.
let skew = 0;
function learnClock(response) {
  const theirs = Date.parse(response.headers.get("date") ?? "");
  if (Number.isNaN(theirs)) return;
  const difference = theirs + 500 - Date.now();
  skew = Math.abs(difference) > 2500 ? difference : 0;
}
const clockNow = () => Date.now() + skew;

const exactForm = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

function span(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

function clock(seconds) {
  const two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.floor(seconds / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

const MANNERS = {
  ago: (seconds) => (seconds < 3 ? "just now" : `${span(seconds)} ago`),
  until: (seconds) => (seconds >= 0 ? "due now" : `in ${clock(-seconds)}`),
  ahead: (seconds) => (seconds >= 0 ? "ending now" : `in ${span(-seconds)}`),
  left: (seconds) => (seconds >= 0 ? "ending now" : `${clock(-seconds)} left`),
  since: (seconds) => `for ${span(Math.max(seconds, 0))}`,
};

function timeNode(manner, iso) {
  const node = h("time", { "data-manner": manner });
  if (iso) setTime(node, iso);
  return node;
}

function setTime(node, iso) {
  if (node.getAttribute("datetime") !== iso) {
    node.setAttribute("datetime", iso);
    const at = Date.parse(iso);
    node.at = at;
    node.title = Number.isNaN(at) ? "" : exactForm.format(at);
  }
  tell(node);
}

function tell(node) {
  const text = Number.isNaN(node.at)
    ? node.getAttribute("datetime")
    : MANNERS[node.dataset.manner](Math.floor((clockNow() - node.at) / 1000));
  setText(node, text);
}

setInterval(() => {
  if (document.hidden) return;
  for (const node of document.querySelectorAll("time[datetime]")) tell(node);
}, 1000);

// --- records -----------------------------------------------------------------------------------------------------

// Reports whether two JSON values are equal.
function same(a, b) {
  if (a === b) return true;
  if (typeof a !== "object" || typeof b !== "object" || !a || !b) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => same(a[key], b[key]));
}

// Throttles `work`: returns a function that runs it soon after a call, immediately after a pause and at most once per `ms`
// during a burst.
function paced(ms, work) {
  let due = false;
  let last = 0;
  return () => {
    if (due) return;
    due = true;
    setTimeout(() => {
      due = false;
      last = performance.now();
      work();
    }, Math.max(20, last + ms - performance.now()));
  };
}

// --- lists -------------------------------------------------------------------------------------------------------

// Makes the children of `parent` match `items`. Nodes are kept by key, so focus, scroll position and open details survive.
function reconcile(parent, items, keyOf, make) {
  const views = (parent.views ??= new Map());
  const wanted = new Map();
  for (const item of items) if (!wanted.has(keyOf(item))) wanted.set(keyOf(item), item);
  for (const [key, view] of views) {
    if (wanted.has(key)) continue;
    view.node.remove();
    views.delete(key);
  }
  let place = parent.firstChild;
  for (const [key, item] of wanted) {
    let view = views.get(key);
    if (!view) views.set(key, (view = make(item)));
    view.update?.(item);
    if (view.node === place) place = place.nextSibling;
    else parent.insertBefore(view.node, place);
  }
}

// --- badges, digests, curves -------------------------------------------------------------------------------------

function badge() {
  const sign = h("span", { class: "sign", "aria-hidden": "true" });
  const word = h("span");
  const node = h("span", { class: "badge" }, sign, word);
  return {
    node,
    set(look, glyph, text) {
      setAttribute(node, "class", `badge ${look}`);
      setText(sign, glyph);
      setText(word, text);
    },
  };
}

const LEVELS = {
  info: ["is-info", "i"],
  warning: ["is-warn", "▲"],
  error: ["is-bad", "✕"],
  critical: ["is-worst", "‼"],
};

function levelBadge(level) {
  const made = badge();
  const [look, glyph] = LEVELS[level] ?? ["", "·"];
  made.set(look, glyph, level || "none");
  return made.node;
}

const copySign = () =>
  svg("svg", { viewBox: "0 0 16 16", fill: "none", stroke: "currentColor", "stroke-width": "1.4", "aria-hidden": "true" },
    svg("rect", { x: "5.5", y: "5.5", width: "8", height: "8", rx: "1.5" }),
    svg("path", { d: "M10.5 3.5v-1a1 1 0 0 0-1-1h-6a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1h1" }));

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard API is only available over TLS and on localhost.
    const area = h("textarea", { class: "sr", readonly: true, "aria-hidden": "true", tabindex: "-1" });
    const focused = document.activeElement;
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    if (!done) throw new Error("this browser did not allow it");
  }
}

function copyButton(what, textOf) {
  const node = h("button", { type: "button", class: "copy", "aria-label": `Copy ${what}`, title: `Copy ${what}` }, copySign());
  node.addEventListener("click", async () => {
    try {
      await copyText(textOf());
      node.classList.add("done");
      setTimeout(() => node.classList.remove("done"), 1500);
      toast("Copied", `${what} is in the clipboard.`);
    } catch (fault) {
      toast("Not copied", fault.message, "failed");
    }
  });
  return node;
}

function digestNode(what, digest, short) {
  let whole = digest;
  const code = h("code", { title: digest });
  const node = h("span", { class: "digest" }, code, copyButton(what, () => whole));
  const set = (digest, short) => {
    whole = digest;
    setAttribute(code, "title", legible(digest));
    setText(code, short ?? digest);
  };
  set(digest, short);
  return { node, set };
}

// Sparkline of the last minutes of a value.
function curve(label) {
  const path = svg("path", {});
  const node = svg("svg", { class: "curve", viewBox: "0 0 60 16", preserveAspectRatio: "none", role: "img", "aria-label": label }, path);
  const values = [];
  return {
    node,
    add(value) {
      values.push(value);
      if (values.length > 60) values.shift();
      if (values.length < 2) return;
      const top = Math.max(1, ...values);
      const step = 60 / (values.length - 1);
      const points = values.map((v, i) => `${(i * step).toFixed(1)} ${(15 - (v / top) * 14).toFixed(1)}`);
      path.setAttribute("d", `M${points.join("L")}`);
    },
  };
}

// --- events ------------------------------------------------------------------------------------------------------

const hasBox = (entry) =>
  entry.old_digest || entry.new_digest || entry.reason || entry.container || entry.output || typeof entry.outage_seconds === "number" || (entry.message ?? "").length > 240;

const outageText = (seconds) => seconds === 0 ? "none" : `down for ${seconds.toFixed(1)} s`;

// The details of an entry, including the output of a failed deployment.
function entryDetails(entry) {
  const list = h("dl", { class: "box" });
  const add = (name, node) => list.append(h("dt", null, name), h("dd", null, node));
  const words = (text) => h("span", { class: "untrusted" }, legible(text));
  if (entry.container) add("Container", words(entry.container));
  if (entry.old_digest) add("Old digest", digestNode("old digest", entry.old_digest).node);
  if (entry.new_digest) add("New digest", digestNode("new digest", entry.new_digest).node);
  if (entry.reason) add("Reason", words(entry.reason));
  if (typeof entry.outage_seconds === "number") add("Interruption", outageText(entry.outage_seconds));
  add("Exact time", words(entry.timestamp));
  if (entry.output) {
    list.append(h("dt", { class: "wide" }, "Output, last lines ", copyButton("output", () => entry.output)));
    list.append(h("dd", { class: "wide" },
      h("pre", { class: "output", tabindex: "0", role: "region", "aria-label": "Output" }, legible(entry.output))));
  }
  return list;
}

function messageNode(entry) {
  const line = h("span", { class: "untrusted clamp" }, legible(entry.message));
  if (!hasBox(entry)) return line;
  const more = h("details", { class: "more" }, h("summary", null, line));
  // Created on opening, since most are never opened.
  more.addEventListener("toggle", () => { if (more.open && more.children.length === 1) more.append(entryDetails(entry)); });
  return more;
}

// New entries are highlighted briefly, but not many at once: that would flicker and cost work for each frame.
function limitHighlights(events) {
  const fresh = events.filter((e) => e.live && !e.shown);
  for (const e of fresh) {
    e.shown = true;
    e.live = fresh.length <= 3;
  }
}

const kindWords = (kind) => legible(kind).replaceAll("_", " ");

// --- asking ------------------------------------------------------------------------------------------------------

// Sends a request and returns the JSON response. Fails with a helpful message, at the latest after 20 seconds.
async function ask(method, path, body) {
  const late = AbortSignal.timeout(20000);
  let response;
  try {
    response = await fetch(base + path, {
      method, signal: late, cache: "no-store", body: body && JSON.stringify(body),
      // The last one proves that this is our own page, also behind a proxy that changes the host.
      headers: { accept: "application/json", ...(body && { "content-type": "application/json" }), "x-evenkeel-page": "1" },
    });
  } catch {
    throw new Error(late.aborted ? "No response within 20 seconds." : "No connection. Is the program running?");
  }
  learnClock(response);
  const answer = await response.json().catch(() => null);
  if (!response.ok) {
    const fault = new Error(answer?.error ?? `The server responded with status ${response.status}.`);
    fault.status = response.status;
    fault.body = answer;
    throw fault;
  }
  return answer;
}

function toast(title, text, look = "") {
  const node = h("div", { class: `toast ${look}` },
    h("p", null, h("strong", null, title), " ", h("span", { class: "untrusted" }, legible(text))));
  const gone = () => node.remove();
  node.append(h("button", { type: "button", class: "button quiet", "aria-label": "Close message", onclick: gone }, "✕"));
  const list = byId("toasts");
  const isUsed = (one) => one.matches(":hover, :focus-within");
  while (list.children.length > 3) ([...list.children].find((one) => !isUsed(one)) ?? list.firstChild).remove();
  list.append(node);
  // A message that is pointed at or has the focus stays: whoever is in it would lose the place in the page.
  const expire = () => (isUsed(node) ? setTimeout(expire, 2000) : gone());
  // Failures stay until they are dismissed.
  if (look !== "failed") setTimeout(expire, look ? 12000 : 6000);
}

// Asks the user for confirmation: "yes", "other" if another deed is offered and chosen, or "".
function confirmDialog(title, text, deed, other) {
  const dialog = byId("dialog");
  const otherButton = byId("dialog-other"); // not on every page
  if (otherButton) {
    setVisible(otherButton, Boolean(other));
    setText(otherButton, other ?? "");
  }
  setText(byId("dialog-title"), title);
  setText(byId("dialog-text"), text);
  setText(byId("dialog-yes"), deed);
  dialog.returnValue = "";
  dialog.showModal();
  byId("dialog-no").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

// --- connection --------------------------------------------------------------------------------------------------

const BEAT_MS = 1000;
// A tab that holds the stream and has not been heard for this long is gone.
const GONE_MS = 4000;
const HIDDEN_POLL_MS = 60000;

// Keeps a stream open and shows its state: live, reconnecting, polling (no stream, but responses), stale.
// `events` maps frame names to handlers; `poll` fetches the same data with a plain request, and may return such values by
// frame name.
//
// All tabs of a browser share one stream, since over HTTP/1.1 a browser opens at most six connections to a host, and six
// streams would leave none for requests. The visible tab that was shown last holds it and passes the frames on; a hidden tab
// has none. A tab that is shown opens a stream that continues after the last frame it has, which brings what it has missed;
// the tab that held the stream before closes its own once the new one is open. So there is no gap; what arrives twice is
// recognised by the handlers. Web Locks and shared workers would be an alternative, but the former need HTTPS, and the latter
// a second document.
class Connection {
  constructor({ url, events, poll, badge, quiet }) {
    Object.assign(this, { url: base + url, events, poll, badge, quiet });
    this.id = Math.random().toString(36).slice(2);
    this.last = ""; // id of the newest frame
    this.heard = 0;
    this.streamed = 0; // when the stream was opened or last delivered a frame, by the program's clock
    this.polled = 0; // time of the last response to a plain request without a stream
    this.wait = 1000;
    this.opened = Date.now();
    this.beaten = 0; // when the other tabs were last told
    this.source = null; // the stream, in the tab that holds it
    this.holder = null; // the tab that holds it, as it last told, and when it did
    this.tabs = new BroadcastChannel(`evenkeel stream 1 ${this.url}`);
    this.tabs.onmessage = ({ data }) => this.receive(data);
    document.addEventListener("visibilitychange", () => this.attend());
    addEventListener("pagehide", () => this.release());
    addEventListener("pageshow", ({ persisted }) => { if (persisted) this.attend(); });
    setInterval(() => this.look(), BEAT_MS);
    // The title of a hidden tab still says how many need attention.
    setInterval(() => { if (document.hidden) this.ask().catch(() => { /* shown once it is visible */ }); }, HIDDEN_POLL_MS);
    this.attend();
  }

  attend() {
    if (document.hidden) this.release();
    else if (!this.source) this.open();
  }

  // Gives the stream up, to another tab if one is visible.
  release() {
    this.close();
    this.holder = null;
    this.tabs.postMessage({ kind: "left", id: this.id });
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  open() {
    this.close();
    // A new source does not inherit the last event id. Without it, only the newest of the missed entries would be replayed.
    const source = (this.source = new EventSource(this.last ? `${this.url}?after=${this.last}` : this.url));
    this.opened = Date.now();
    this.isComplete = false; // whether the stream has been open since, and so has brought what was missed
    source.onopen = () => {
      this.isComplete = true;
      this.holder = null;
      this.wait = 1000;
      this.polled = 0;
      this.streamed = clockNow();
      this.beaten = 0;
      this.hear();
    };
    source.onerror = () => {
      // The browser resumes a broken connection by itself, but not a rejected one.
      if (source.readyState === EventSource.CLOSED) this.again();
      this.look();
    };
    for (const name of Object.keys(this.events)) {
      source.addEventListener(name, ({ data, lastEventId }) => {
        this.tabs.postMessage({ kind: "frame", name, data, last: lastEventId });
        this.take(name, data, lastEventId);
      });
    }
    this.look();
  }

  take(name, data, last) {
    if (last) this.last = last;
    this.streamed = clockNow();
    this.hear();
    let value;
    try { value = JSON.parse(data); } catch { return; }
    this.events[name]?.(value, last);
  }

  again() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), this.wait);
    // Shorter than the time without a response after which the state changes.
    this.wait = Math.min(this.wait * 2, 10000);
    // Another tab may have a stream all the same.
    if (this.holder) return;
    this.ask().then(
      (values) => {
        this.polled = Date.now();
        this.tabs.postMessage({ kind: "polled", values });
        this.hear();
      },
      () => { this.polled = 0; this.look(); });
  }

  async ask() {
    const values = await this.poll();
    for (const [name, value] of Object.entries(values ?? {})) this.events[name](value, "");
    return values;
  }

  // A message of another tab.
  receive(message) {
    if (document.hidden) return;
    if (message.kind === "frame") this.take(message.name, message.data, message.last);
    else if (message.kind === "polled") {
      for (const [name, value] of Object.entries(message.values ?? {})) this.events[name]?.(value, "");
    } else if (message.kind === "beat") this.meet(message);
    else if (message.kind === "left" && this.holder?.id === message.id) {
      this.holder = null;
      // Several tabs may be visible. Mostly, one is first.
      if (!this.source) setTimeout(() => { if (!this.holder) this.attend(); }, Math.random() * 200);
    }
  }

  // Another tab holds a stream, too: the better one is kept. A tab that still lacks something waits for its own.
  meet(other) {
    const rank = (tab) => [tab.isOpen ? 1 : 0, tab.opened, tab.id];
    const [theirs, mine] = [rank(other), rank({ isOpen: this.isOpen(), opened: this.opened, id: this.id })];
    const at = theirs.findIndex((value, n) => value !== mine[n]);
    const isBetter = theirs[at] > mine[at];
    if (this.source && this.isComplete && isBetter) this.close();
    if (this.source && !(isBetter && other.isOpen)) return;
    this.holder = { ...other, at: Date.now() };
    if (other.heard > this.heard) this.heard = other.heard;
    this.look();
  }

  isOpen() {
    return this.source?.readyState === EventSource.OPEN;
  }

  hear() {
    this.heard = Date.now();
    this.look();
  }

  // A plain request has shown that an event occurred at `time`. A stream that does not deliver it soon is dead, even if the
  // browser considers it open, and is reopened.
  expect(time) {
    const isLive = this.isOpen() || this.holder?.isOpen;
    if (isLive && time > this.streamed + 5000 && clockNow() > time + 15000) this.open();
  }

  look() {
    if (document.hidden) return;
    const now = Date.now();
    if (this.holder && now - this.holder.at > GONE_MS) this.holder = null;
    // Open, but silent for longer than the heartbeat interval allows: the connection is dead.
    const isDead = this.isOpen() && now - (this.heard || this.opened) > this.quiet && now - this.opened > this.quiet;
    if (isDead || (!this.source && !this.holder)) return this.open();
    const state = this.holder?.state ?? this.ownState(now);
    if (this.source) {
      const { id, opened, heard } = this;
      if (now - this.beaten >= BEAT_MS / 2 || state !== this.state) {
        this.beaten = now;
        this.tabs.postMessage({ kind: "beat", id, opened, heard, state, isOpen: this.isOpen() });
      }
    }
    this.state = state;
    const words = {
      live: "Live",
      reconnecting: this.heard ? "Reconnecting…" : "Connecting…",
      polling: "No live stream, polling",
      stale: this.heard ? `Stale since ${new Date(this.heard).toLocaleTimeString()}` : "No connection",
    };
    setAttribute(this.badge, "data-state", state);
    setText(this.badge, words[state]);
    document.body.dataset.link = state;
    this.onstate?.(state);
  }

  ownState(now) {
    if (now - (this.heard || this.opened) > this.quiet) return "stale";
    if (this.isOpen()) return "live";
    return now - this.polled < 12000 ? "polling" : "reconnecting";
  }
}

// --- theme and keys ----------------------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light");
}

function showTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  setText(byId("theme"), next === "dark" ? "☾ Dark" : "☀ Light");
  setAttribute(byId("theme"), "aria-label", `Switch to the ${next} theme`);
}

byId("theme").addEventListener("click", () => {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("evenkeel-theme", next); } catch { /* applies to this visit only */ }
  showTheme();
});
prefersDark.addEventListener("change", showTheme);
showTheme();

// `/` focuses the search field, Escape clears it.
const search = byId("search");
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "Escape" && event.target === search) {
    search.value = "";
    search.dispatchEvent(new Event("input"));
  }
});
