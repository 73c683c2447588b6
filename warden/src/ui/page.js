// The warden's page: machines and the live list of entries.
const address = new URL(location.href);
if (address.searchParams.has("token")) {
  // A token in the address would end up in bookmarks. The cookie is set by now.
  address.searchParams.delete("token");
  history.replaceState(null, "", address.pathname + address.search);
}
const line = (text) => Object.assign(document.createElement("li"), { textContent: text });
const entries = document.getElementById("entries");
const source = new EventSource("/events");
source.onmessage = (message) => {
  const entry = JSON.parse(message.data);
  entries.prepend(line(`${entry.timestamp} ${entry.machine} ${entry.service} [${entry.level}] ${entry.event}: ${entry.message}`));
  while (entries.children.length > 200) entries.lastChild.remove();
};
async function machines() {
  const answer = await fetch("/machines");
  if (answer.status === 401) location.reload();
  const records = answer.ok ? await answer.json() : [];
  const word = (online) => (online === undefined ? "not asked yet" : online ? "online" : "offline");
  const text = (m) => `${m.id}: ${word(m.online)}${m.missing ? `, ${m.missing} entries missing` : ""}`;
  document.getElementById("machines").replaceChildren(...records.map((m) => line(text(m))));
  setTimeout(machines, 10000);
}
machines();
